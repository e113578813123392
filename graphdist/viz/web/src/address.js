// The state in the address: `#pass=simplify&node=%25214&tab=memory`. A page that is opened with one shows that, and Back
// returns to what was shown before.

const STATE = ["pass", "node", "tab", "colour", "beside"];

export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(STATE.filter((name) => given.has(name)).map((name) => [name, given.get(name)]));
}

export function addressOf(state) {
  const given = new URLSearchParams(STATE.filter((name) => state[name] !== undefined).map((name) => [name, state[name]]));
  return `#${given}`;
}

// Enters a state in the history, or, as the first of the page, in place of the present one.
export function writeAddress(state, { replace = false } = {}) {
  const address = addressOf(state);
  if (address === location.hash) return;
  try {
    history[replace ? "replaceState" : "pushState"](null, "", address);
  } catch {
    // A frame in a notebook has no history of its own.
  }
}
