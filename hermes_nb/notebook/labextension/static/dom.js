/* Elements, and buttons that only the user's own hand can press. */

export const element = (tag, className, text, attributes) => {
  const made = document.createElement(tag);
  made.className = className;
  if (text) made.textContent = text; // never HTML: a model wrote most of what is shown
  for (const [name, value] of Object.entries(attributes ?? {})) made.setAttribute(name, value);
  return made;
};

// Keys belong to the focused element and are no shortcuts of the notebook. An element around it
// would be too late.
export const OWN_KEYS = { 'data-lm-suppress-shortcuts': 'true' };

// No script in some cell's output may say yes. `key` is shown on it.
export const button = (label, action, className, key) => {
  const made = element('button', className ?? '', label, { type: 'button', ...OWN_KEYS });
  made.addEventListener('click', event => event.isTrusted && action());
  if (key) {
    made.setAttribute('aria-keyshortcuts', key);
    made.append(element('kbd', '', key, { 'aria-hidden': 'true' }));
  }
  return made;
};

// A bar above a cell's text.
export const bar = ({ Widget }, cell, about, inside) => {
  const node = element('div', 'hermes-ui hermes-cap', '', { role: 'group', ...about });
  node.append(...inside);
  const made = new Widget({ node });
  // A cell that was never in view has no inside yet.
  void cell.ready.then(() => made.isDisposed || cell.layout.insertWidget(1, made));
  return made;
};

// The cell that a command is for: whose menu is open, though another may be the active one.
export const cellMeant = ({ app, tracker }) => {
  const { target, type } = window.event ?? {};
  const menu = type === 'contextmenu' || target?.closest?.('.lm-Menu');
  const node = menu && app.contextMenuHitTest(each => each.classList.contains('jp-Cell'));
  const { widgets } = tracker.currentWidget?.content ?? {};
  return widgets?.find(cell => cell.node === node) ?? tracker.activeCell;
};

// JupyterLab runs what a key is bound to 10 ms later, outside of any event. Then the key that was
// pressed last counts, once; not in what a notebook shows, which may have any class.
const SHOWN = '.jp-RenderedHTMLCommon,.jp-OutputArea';
let pressed;
window.addEventListener('keydown', event => event.isTrusted && (pressed = event), true);
const byKey = ({ constructor: { keystrokeForKeydownEvent }, keyBindings }, name) => {
  const event = pressed;
  pressed = null;
  if (!(event?.timeStamp > performance.now() - 1000)) return false;
  const key = keystrokeForKeydownEvent(event);
  const at = selector => event.target.closest(selector);
  const fits = ({ command, keys }) => command === name && keys.at(-1) === key;
  return !at(SHOWN) && keyBindings.some(each => fits(each) && at(each.selector));
};

// By the user's own hand: a key, a menu, the palette. A notebook may show links to commands, and
// what looks like a menu, but only the application's are children of the body.
export const byHand = ({ commands, shell }, name) => {
  const { event } = window;
  if (/^key|^$/.test(event?.type ?? '') && byKey(commands, name)) return true;
  const path = event?.isTrusted ? event.composedPath() : [];
  if (path.at(-5)?.matches('.lm-Menu,.jp-ModalCommandPalette')) return true;
  const palette = ({ id, node }) => id === 'command-palette' && path.includes(node);
  return [...shell.widgets('left')].some(palette);
};

// In the palette and, with a `selector`, in the menu of what fits it.
export const command = ({ app, palette }, name, label, act, isEnabled, selector) => {
  const command = `hermes-nb:${name}`;
  app.commands.addCommand(command, {
    label,
    execute: () => byHand(app, command) && isEnabled() && act(),
    isEnabled: () => Boolean(isEnabled())
  });
  palette?.addItem({ command, category: 'Hermes' });
  if (selector) app.contextMenu.addItem({ command, selector, rank: 20 });
};

// Each notebook, when it is there.
export const eachNotebook = (tracker, watch) => {
  const ready = panel => void panel.context.ready.then(() => panel.isDisposed || watch(panel));
  tracker.forEach(ready);
  tracker.widgetAdded.connect((_, panel) => ready(panel));
};

// Each of their cells, at first and after each change.
export const eachCell = ({ settings, tracker }, look) =>
  eachNotebook(tracker, panel => {
    const { content } = panel;
    const all = () => content.widgets.forEach(each => each.model.isDisposed || look(panel, each));
    content.modelContentChanged.connect(() => setTimeout(all));
    settings?.changed.connect(all);
    all();
  });
