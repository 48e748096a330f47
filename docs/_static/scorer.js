// Ranks guides above background pages and names of the Python API, and pages whose title has the words first.
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const background =
      /^(notebooks|docs\/(adr|reference)|docs\/(architecture|comparison|index|migration|performance|upgrade)$|CONTRIBUTING)/;
    const query = new URLSearchParams(window.location.search).get("q") || "";
    const words = query.toLowerCase().match(/[a-z0-9]+/g) || [];
    const named = words.filter((word) =>
      new RegExp(`\\b${word}`).test(title.toLowerCase()),
    );
    const bonus = words.length ? (named.length / words.length) * (anchor ? 8 : 16) : 0;
    return score + (background.test(page) ? -6 : bonus);
  },
  objNameMatch: 4,
  objPartialMatch: 1,
  objPrio: { 0: 0, 1: 0, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
