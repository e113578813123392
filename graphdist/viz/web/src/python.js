// The colours of Python: comments, strings, keywords, numbers and names that are defined. A string of three quotes may
// go over many lines.
import { element } from "./elements.js";

const TOKEN = /(#.*)|((?:\b[rbfuRBFU]{1,2})?(?:"""|'''))|((?:\b[rbfuRBFU]{1,2})?(?:"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?))|(@[\w.]+)|(\b(?:def|class)\s+)(\w+)|\b(False|None|True|and|as|assert|async|await|break|case|continue|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|match|nonlocal|not|or|pass|raise|return|try|while|with|yield)\b|\b(\d[\w.]*)/g;
const KINDS = [, "comment", undefined, "string", "defined", "keyword", "defined", "keyword", "literal"];

// Returns the pieces of each line, texts and elements.
export function coloured(lines) {
  let quotes; // that end the string a line begins in
  return lines.map((line) => {
    const pieces = [];
    let at = 0;
    const until = (end, kind) => {
      if (end > at) pieces.push(kind ? element("span", { class: `py-${kind}` }, line.slice(at, end)) : line.slice(at, end));
      at = end;
    };
    const string = () => {
      const end = line.indexOf(quotes, TOKEN.lastIndex);
      TOKEN.lastIndex = end < 0 ? line.length : end + 3;
      if (end >= 0) quotes = undefined;
      until(TOKEN.lastIndex, "string");
    };
    TOKEN.lastIndex = 0;
    if (quotes) string();
    for (let found; (found = TOKEN.exec(line)); ) {
      until(found.index);
      if (found[2]) {
        quotes = found[2].slice(-3);
        string();
        continue;
      }
      for (let kind = 1; kind < KINDS.length; kind++) if (found[kind]) until(at + found[kind].length, KINDS[kind]);
    }
    until(line.length);
    return pieces;
  });
}
