// Long lists and tables: rows are made when they are about to be seen, so that showing one costs the same however long
// it is. The last row watches for its turn.
const FIRST = 40;
const MORE = 120;
const AHEAD = "300px";

// Appends what the makers make to a list or the body of a table.
export function grow(parent, makers) {
  let at = 0;
  const watcher = new IntersectionObserver((entries) => {
    if (entries.some((entry) => entry.isIntersecting)) append(MORE);
  }, { rootMargin: AHEAD });
  const append = (several) => {
    watcher.disconnect();
    if (at >= makers.length) return;
    parent.append(...makers.slice(at, at + several).map((make) => make()));
    at += several;
    if (at < makers.length) watcher.observe(parent.lastElementChild);
  };
  append(FIRST);
  parent.growAll = () => append(makers.length); // for print
  return parent;
}
