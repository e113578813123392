// Elements are made of text alone: nothing of a user's program is ever parsed as HTML. Characters that are not seen, or
// that turn the direction of the text around them, are written as their numbers.

const UNSEEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]/g;
export const visible = (text) => text.replace(UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value != null) made.setAttribute(key, value);
  }
  made.append(...children.flat(Infinity).filter((child) => child != null).map((child) => (typeof child === "string" ? visible(child) : child)));
  return made;
}

export const link = (text, title, onclick) =>
  element("button", { class: "link", type: "button", title, onclick }, text);
