// Pointers, the wheel and touches on the drawing. The wheel moves it, with Ctrl (or two fingers on a touchpad) it zooms;
// on a screen that is touched, one finger moves the drawing and two zoom it.
export const GESTURES = { step: 1.25, wheel: 0.01, still: 3, hover: 250 };

export function watch(view) {
  const { canvas } = view;
  const held = new Map(); // pointer -> where it is
  let moved = false;
  let waiting;
  const hideCard = () => {
    clearTimeout(waiting);
    view.card.hide();
  };
  canvas.addEventListener("pointerdown", (event) => {
    hideCard();
    canvas.setPointerCapture(event.pointerId);
    held.set(event.pointerId, { x: event.offsetX, y: event.offsetY, startX: event.offsetX, startY: event.offsetY });
    if (held.size === 1) moved = false;
  });
  canvas.addEventListener("pointermove", (event) => {
    const pointer = held.get(event.pointerId);
    const [x, y] = [event.offsetX, event.offsetY];
    if (!pointer) {
      const box = view.at(x, y);
      canvas.style.cursor = box ? "pointer" : "grab";
      clearTimeout(waiting);
      if (box?.key !== view.card.key) view.card.hide();
      if (box) waiting = setTimeout(() => view.card.show(view, box, x, y), GESTURES.hover);
      return;
    }
    if (Math.hypot(x - pointer.startX, y - pointer.startY) > GESTURES.still) moved = true;
    if (!moved) return;
    const before = spread(held);
    const [fromX, fromY] = [pointer.x, pointer.y];
    Object.assign(pointer, { x, y });
    if (held.size === 1) return view.moveBy(x - fromX, y - fromY);
    const after = spread(held);
    view.moveBy(after.x - before.x, after.y - before.y);
    if (before.size) view.zoomBy(after.size / before.size, after.x, after.y);
  });
  const release = (event) => held.delete(event.pointerId);
  canvas.addEventListener("pointerup", (event) => {
    if (held.size === 1 && held.has(event.pointerId) && !moved) view.press(view.at(event.offsetX, event.offsetY));
    release(event);
  });
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", hideCard);
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    hideCard();
    const unit = event.deltaMode ? 16 : 1; // lines, where the browser counts in lines
    if (event.ctrlKey || event.metaKey) return view.zoomBy(Math.exp(-event.deltaY * unit * GESTURES.wheel), event.offsetX, event.offsetY);
    const [x, y] = event.shiftKey && !event.deltaX ? [event.deltaY, 0] : [event.deltaX, event.deltaY];
    view.moveBy(-x * unit, -y * unit);
  }, { passive: false });
}

// The middle of the fingers, and how far two of them are apart.
function spread(held) {
  const [one, other = one] = [...held.values()];
  return { x: (one.x + other.x) / 2, y: (one.y + other.y) / 2, size: Math.hypot(one.x - other.x, one.y - other.y) };
}
