// Sphinx's own scores (basic/static/searchtools.js), but a name of the API comes after the pages,
// and the glossary before them.
const BELOW_PAGES = 40;
const GLOSSARY = 20;

var Scorer = {
  score: ([docname, , , , score, , kind]) => {
    if (kind === "object") return score - BELOW_PAGES;
    return docname === "glossary" ? score + GLOSSARY : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
