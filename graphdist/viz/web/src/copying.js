// Text for the clipboard. A page that opens from disk may not be allowed to write there: then a selection is copied.
import { element } from "./elements.js";

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const holder = element("textarea", { "aria-hidden": "true" });
    holder.value = text;
    const focused = document.activeElement;
    document.body.append(holder);
    holder.select();
    document.execCommand("copy");
    holder.remove();
    focused?.focus();
  }
}
