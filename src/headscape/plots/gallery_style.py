"""The style sheet of the page beside the figures."""

from typing import Final

STYLE: Final = """\
:root { --ground: #fbfbf9; --ink: #1b1f24; --quiet: #57606a; --line: #d8dce0; --link: #0b57a4;
  --card: #ffffff; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14171a; --ink: #e6e8ea; --quiet: #a3abb3; --line: #363c42; --link: #8ec5ff;
    --card: #1c2024; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.25rem 4rem; background: var(--ground);
  color: var(--ink); font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 1rem; }
h2 { font-size: 1.3rem; margin: 0 0 .75rem; }
a { color: var(--link); }
a:focus-visible, summary:focus-visible, .wide:focus-visible { outline: 3px solid var(--link);
  outline-offset: 2px; }
nav ol { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap;
  gap: .4rem 1.2rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.25rem; margin: 1.5rem 0; scroll-margin-top: 1rem; }
figure { margin: 0; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: .3rem; }
figcaption { margin: .9rem 0 .6rem; overflow-wrap: anywhere; }
.viewer { font-weight: 600; }
.files { display: flex; flex-wrap: wrap; gap: .3rem 1rem; margin: 0 0 .6rem; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: right; padding: .25rem .7rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
thead th { white-space: normal; vertical-align: bottom; }
dl { display: grid; grid-template-columns: minmax(6rem, max-content) 1fr; gap: .2rem 1rem;
  margin: .5rem 0; }
dt { color: var(--quiet); }
dd { margin: 0; min-width: 0; }
code { font: .88em/1.5 ui-monospace, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
footer { border-top: 1px solid var(--line); margin-top: 2rem; padding-top: 1rem; }
@media (max-width: 30rem) {
  body { padding: 1.25rem .75rem 3rem; }
  section { padding: .9rem; }
  dl { grid-template-columns: 1fr; }
  dd { margin-bottom: .5rem; }
}
@media print { section { break-inside: avoid; border: 0; padding: 0; } nav { display: none; } }
"""
