"""The pages that the dashboard's server gives: the dashboard itself, and a browser of trajectories without scripts."""

from collections.abc import Iterable, Mapping, Sequence

from agentlab.types import checked_option
from agentlab.viz.browser import BrowsedRun
from agentlab.viz.escaping import escape
from agentlab.viz.face import SIZES
from agentlab.viz.paint import COLORINGS, Coloring
from agentlab.viz.siblings import KINDS, Kept, group_title, matching, siblings_html, siblings_of

_STYLE = (
    "body{font:14px/1.5 system-ui,sans-serif;color:#222;background:#fff;margin:0;padding:4px;overflow-wrap:anywhere}"
    "img{min-width:0;height:auto}button,select,input{font:inherit;margin:2px 4px 2px 0;max-width:100%}"
    "#pictures{display:flex;flex-flow:row wrap;align-items:flex-start}#main{max-width:1080px}"
)
_SCRIPT = """
const at = (id) => document.getElementById(id), seen = {};
let number = -1;
async function look() {
  const answer = await fetch("state?n=" + number, {cache: "no-store"});
  if (answer.status !== 200) return false;
  const state = await answer.json();
  number = state.n;
  for (const [name, html] of Object.entries(state.html)) at(name).innerHTML = html;
  for (const [name, version] of Object.entries(state.pictures))
    if (seen[name] !== version) { seen[name] = version; at(name).src = name + ".png?v=" + version; }
  if (state.over) at("acts").remove();
  return state.over;
}
async function beat() {
  let over = false;
  try { over = await look(); at("trouble").textContent = ""; }
  catch (error) { at("trouble").textContent = "The kernel does not answer: " + error.message; }
  if (!over) setTimeout(beat, 1000);
}
for (const button of document.querySelectorAll("button")) button.onclick = async () => {
  const answer = await fetch(button.value, {method: "POST"});
  at("told").textContent = answer.ok ? "" : await answer.text();
};
beat();
"""


def policy(nonce: str | None) -> str:
    """What a page may do: show pictures and styles of its own, ask its server, run its own script if it has a nonce."""
    script = f"; script-src 'nonce-{nonce}'; connect-src 'self'" if nonce else ""
    return f"default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; form-action 'self'{script}"


def page_html(pictures: Iterable[str], acts: Iterable[str], pages: Iterable[str], nonce: str) -> str:
    """The dashboard, which asks for texts and pictures once a second until the run is over."""
    images = "".join(
        f'<img id="{name}" alt="{name}" style="flex:1 1 {SIZES[name][0]}px;max-width:{SIZES[name][1]}px">'
        for name in pictures
    )
    buttons = "".join(f'<button value="{escape(act.lower())}">{escape(act)}</button>' for act in acts)
    links = "".join(f' <a href="{escape(page)}">{escape(page)}</a>' for page in pages)
    body = (
        f'<div id="main"><div id="head"></div><div id="pictures">{images}</div><div id="foot"></div>'
        f'<div><span id="acts">{buttons}</span>{links}</div><div id="told"></div><div id="trouble"></div></div>'
        f'<script nonce="{nonce}">{_SCRIPT}</script>'
    )
    return _whole("agentlab", body)


def trajectories_html(run: BrowsedRun, query: Mapping[str, str]) -> str:
    """The browser of trajectories as a page that works by its form alone.

    Raises:
        ConfigError: the query names an unknown kind or colouring.
    """
    snapshot = run.snapshot()
    show = checked_option("show", query.get("show", "all"), Kept)
    color = checked_option("color", query.get("color", "loss mask"), Coloring)
    text = query.get("text", "")
    groups = matching(siblings_of(snapshot), show, text)
    chosen = next((group for group in groups if group.id == query.get("group")), groups[0] if groups else None)
    options = [(group.id, f"{place}. {group_title(group)}") for place, group in enumerate(groups, 1)]
    form = (
        '<form method="get"><a href="./">dashboard</a> '
        f"{_select('show', [(kind, kind) for kind in KINDS], show)}"
        f'<input name="text" placeholder="text of the task" value="{escape(text)}">'
        f"{_select('color', [(kind, kind) for kind in COLORINGS], color)}"
        f"{_select('group', options, chosen.id if chosen else '')}<button>Show</button></form>"
    )
    body = siblings_html(chosen, run.tokenizer, color=color, kept=show) if chosen else "No episode matches."
    return _whole(f"{snapshot.name}: trajectories", form + body)


def _select(name: str, options: Sequence[tuple[str, str]], chosen: str) -> str:
    listed = "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(label)}</option>'
        for value, label in options
    )
    return f'<select name="{name}" aria-label="{name}">{listed}</select>'


def _whole(title: str, body: str) -> str:
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>"
    )
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'
