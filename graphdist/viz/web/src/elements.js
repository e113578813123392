// Elements are made of text alone: nothing of a user's program is ever parsed as HTML.

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((one) => one != null));
  return made;
}

export const link = (text, title, onclick) =>
  element("button", { class: "link", type: "button", title, onclick }, text);
