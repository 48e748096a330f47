"""How the panel looks: one stylesheet of theme variables, and text made fit for its HTML."""

from __future__ import annotations

import html
import re

from hermes_nb.core.text import head_tail, one_line
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

WHOLE = 20_000
"""Characters of a file that are shown; of a longer one the head and the tail."""
_CODE = re.compile(r"`([^`\n]{1,200})`")

STYLE = """<style>
.hermes-panel{min-width:224px;width:100%;overflow-x:hidden;color:var(--jp-ui-font-color1);
font-size:var(--jp-ui-font-size1,13px);line-height:1.45;background:var(--jp-layout-color1)}
.hermes-panel .widget-html,.hermes-panel .jupyter-widgets{margin:0}
.hermes-panel .widget-box{overflow:visible}
.hermes-panel .widget-html-content{font-size:inherit;line-height:inherit;color:inherit;
align-self:auto;flex:1 1 auto;min-width:0}
.hermes-panel .widget-html{line-height:inherit;height:auto;min-width:0}
.hermes-panel .hermes-style{display:none}
.hermes-panel .lm-TabBar-content{border-bottom:1px solid var(--jp-border-color1);
align-items:stretch;justify-content:flex-start}
.hermes-panel .lm-TabBar-tabLabel{overflow:visible;font-size:12px}
.hermes-panel .jupyter-widgets.jupyter-widget-tab>.lm-TabBar .lm-TabBar-tab{border:0;flex:0 0 auto;
min-width:0;background:none;padding:0 8px;margin:0;line-height:30px;color:var(--jp-ui-font-color2);
transform:none;cursor:pointer;max-height:none;min-height:0}
.hermes-panel .jupyter-widgets.jupyter-widget-tab>.lm-TabBar .lm-TabBar-tab.lm-mod-current{
min-height:0;max-height:none;color:var(--jp-ui-font-color1);font-weight:600;transform:none;
box-shadow:inset 0 -2px 0 var(--jp-brand-color1)}
.hermes-panel .jupyter-widgets.jupyter-widget-tab>.lm-TabBar .lm-TabBar-tab.lm-mod-current:before{
display:none}
.hermes-panel .jupyter-widgets.jupyter-widget-tab>
.widget-tab-contents.jupyter-widget-TabPanel-tabContents{border:0;padding:0 2px;margin-top:6px;
background:none;overflow:visible}
.hermes-panel b{font-weight:600}
.hermes-panel code{font-family:var(--jp-code-font-family);font-size:.94em;background:none;
color:inherit;padding:0}
.hermes-panel small,.hermes-panel .hermes-small{font-size:11px}
.hermes-panel .hermes-dim,.hermes-panel small{color:var(--jp-ui-font-color2)}
.hermes-panel .hermes-two{display:flex;flex-wrap:wrap;gap:0 8px;align-items:baseline;
justify-content:space-between}
.hermes-panel .hermes-two>:first-child{min-width:0;overflow-wrap:anywhere}
.hermes-panel .hermes-big{font-size:18px;font-weight:600}
.hermes-panel .hermes-tag{font-size:10px;border:1px solid var(--jp-border-color1);
border-radius:8px;padding:0 6px;color:var(--jp-ui-font-color2);white-space:nowrap}
.hermes-panel .hermes-head{margin-top:10px}
.hermes-panel .hermes-group{margin:10px 0 2px;font-size:11px;color:var(--jp-ui-font-color2)}
.hermes-panel .hermes-said{border-left:3px solid var(--jp-brand-color1);
padding:2px 8px;margin:6px 4px;background:var(--jp-layout-color2);overflow-wrap:anywhere}
.hermes-panel .hermes-said.hermes-bad{border-left-color:var(--jp-error-color1)}
.hermes-panel .hermes-wait{border-left:3px solid var(--jp-warn-color1);padding:2px 8px;
margin:0 0 8px;overflow-wrap:anywhere}
.hermes-panel .hermes-row{border-top:1px solid var(--jp-border-color2);padding:5px 0 4px;
overflow-wrap:anywhere}
.hermes-panel .hermes-text{white-space:pre-wrap}
.hermes-panel .hermes-foot{flex-wrap:wrap;align-items:baseline;gap:0 8px}
.hermes-panel .hermes-foot .widget-html{flex:0 1 auto;width:auto}
.hermes-panel .hermes-doc{font:12px/1.45 var(--jp-code-font-family);white-space:pre-wrap;
overflow:auto;max-height:22em;background:var(--jp-layout-color2);padding:6px 8px;margin:4px 0}
.hermes-panel .hermes-legend{display:grid;grid-template-columns:10px 1fr auto;gap:2px 8px;
font-size:11.5px;align-items:center}
.hermes-panel .hermes-legend .hermes-dim{text-align:right}
.hermes-panel .hermes-legend i{width:10px;height:10px;border-radius:2px}
.hermes-panel .hermes-chart{display:block;margin:4px 0}
.hermes-panel .hermes-rail{fill:var(--jp-layout-color2)}
.hermes-panel .hermes-fill,.hermes-panel .hermes-fresh,.hermes-panel .hermes-cached{
fill:var(--jp-brand-color1)}
.hermes-panel .hermes-cached{opacity:.38}
.hermes-panel .hermes-over{fill:var(--jp-error-color1)}
.hermes-panel .hermes-mark{stroke:var(--jp-warn-color1);stroke-width:2}
.hermes-panel .hermes-cost{fill:none;stroke:var(--jp-warn-color1);stroke-width:1.5;
vector-effect:non-scaling-stroke}
.hermes-panel .jupyter-button{width:auto;height:26px;line-height:24px;padding:0 12px;margin:0;
font-size:12px;border:1px solid var(--jp-border-color1);border-radius:2px;box-shadow:none;
background:var(--jp-layout-color1);color:var(--jp-ui-font-color1);flex:0 0 auto;max-width:100%}
.hermes-panel .jupyter-button:hover:enabled{background:var(--jp-layout-color2);box-shadow:none}
.hermes-panel .jupyter-button.hermes-primary{background:var(--jp-brand-color1);
border-color:var(--jp-brand-color1);color:var(--jp-ui-inverse-font-color1)}
.hermes-panel .jupyter-button.hermes-primary:hover:enabled{background:var(--jp-brand-color1);
text-decoration:underline}
.hermes-panel .jupyter-button.hermes-link{border:0;padding:0;height:auto;line-height:inherit;
background:none;color:var(--jp-brand-color1);font-size:11px;text-align:left;white-space:normal;
min-height:18px}
.hermes-panel .jupyter-button.hermes-link:hover:enabled{text-decoration:underline;background:none}
.hermes-panel .jupyter-button.hermes-name{color:var(--jp-ui-font-color1);font-size:12.5px;
flex:1 1 auto;overflow-wrap:anywhere}
.hermes-panel .jupyter-button:disabled{opacity:1;color:var(--jp-ui-font-color2);
background:none;border-style:dashed;cursor:not-allowed}
.hermes-panel .jupyter-button.hermes-link:disabled{text-decoration:line-through}
.hermes-panel :is(button,input,textarea,select,[tabindex]):focus-visible{
outline:2px solid var(--jp-brand-color1)!important;outline-offset:1px}
.hermes-panel .widget-text,.hermes-panel .widget-textarea,.hermes-panel .widget-dropdown{
width:auto;min-width:0;flex:1 1 120px;height:auto}
.hermes-panel .widget-textarea{width:100%;flex:none}
.hermes-panel :is(input,textarea,select){background:var(--jp-layout-color1)!important;
color:var(--jp-ui-font-color1)!important;border:1px solid var(--jp-border-color1)!important;
font-size:12px!important;min-width:0!important;box-sizing:border-box;
font-family:inherit}
.hermes-panel :is(input,select){height:26px!important;padding:0 6px!important}
.hermes-panel input::placeholder{color:var(--jp-ui-font-color2);opacity:1}
.hermes-panel .hermes-line{flex-wrap:wrap;gap:6px;align-items:center;margin:4px 0}
</style>"""
"""Everything is below `.hermes-panel`, so that no other output of the notebook is touched."""


def shown(text: str, limit: int = 160) -> str:
    """Return foreign text on one line for HTML: without secrets, nothing in it hidden or obeyed."""
    return html.escape(visible(one_line(redact(text), limit)))


def coded(text: str, limit: int = 160) -> str:
    """Return foreign text on one line for HTML, its code spans as such."""
    return _CODE.sub(r"<code>\1</code>", shown(text, limit))


def paragraphs(text: str, limit: int = 2_500) -> str:
    """Return foreign text with its lines, and its code spans as such, for HTML."""
    safe = html.escape(visible(head_tail(redact(text), limit), lines=True))
    coded = _CODE.sub(r"<code>\1</code>", safe)
    return f'<div class="hermes-text">{coded}</div>'


def document(text: str, limit: int = WHOLE) -> str:
    """Return a foreign file's text in a box that scrolls, for HTML."""
    safe = html.escape(visible(head_tail(redact(text), limit), lines=True))
    return f'<div class="hermes-doc" tabindex="0" role="region" aria-label="text">{safe}</div>'


def two(left: str, right: str) -> str:
    """Return a line with HTML at both ends."""
    return f'<div class="hermes-two"><span>{left}</span><span>{right}</span></div>'


def heading(left: str, right: str = "") -> str:
    """Return a section's heading; `right` is what a person looks for there."""
    return f'<div class="hermes-head">{two(f"<b>{left}</b>", dim(right))}</div>'


def group(name: str) -> str:
    """Return the heading of some lines of a list."""
    return f'<div class="hermes-group">{name}</div>'


def caution(markup: str) -> str:
    """Return HTML that should not be overlooked."""
    return f'<div class="hermes-wait">{markup}</div>'


def tag(text: str) -> str:
    """Return a small label."""
    return f'<span class="hermes-tag">{html.escape(text)}</span>'


def dim(text: str) -> str:
    """Return HTML in the colour of what matters less."""
    return f'<span class="hermes-dim">{text}</span>'
