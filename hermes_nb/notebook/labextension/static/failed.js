/* Help on a cell that failed: a bar above it, commands in the palette and in the cell's menu. */
export const start = given => {
  const { cells, dom, libraries, parts, settings, tracker } = given;
  const LABELS = { fix: 'Fix with Hermes', explain: 'Explain' };
  const OURS = /^\s*%{1,2}hermes\b/; // what fails there is a turn of its own

  const ask = (what, panel, { model: { id, executionCount: n } }) => {
    // A file may have any id; one that is none would be code in the line below.
    if (!cells.kernelOf(panel) || !/^[\w-]{1,64}$/.test(id)) return;
    void parts.changes.run(panel, '%load_ext hermes_nb');
    const same = panel.content.widgets.filter(({ model }) => n && model.executionCount === n);
    parts.cells.ask(panel, id, `%hermes ${what} --cell ${same.length === 1 ? n : id}`);
  };

  const errorOf = ({ model }) => {
    if (model.type !== 'code' || OURS.test(model.sharedModel.getSource())) return '';
    for (let i = 0; i < model.outputs.length; i++) {
      const { output_type, ename, evalue } = model.outputs.get(i).toJSON();
      if (output_type === 'error') return `${ename}: ${evalue}`;
    }
    return '';
  };

  const bars = new WeakMap(); // by cell widget
  const show = (panel, cell) => {
    const python = panel.content.model?.defaultKernelLanguage === 'python';
    const wanted = python && (settings?.composite.failedCells ?? true) ? errorOf(cell) : '';
    if ((bars.get(cell)?.node.title ?? '') === wanted) return;
    bars.get(cell)?.dispose();
    bars.delete(cell);
    if (!wanted) return;
    const about = { 'aria-label': 'This cell failed', title: wanted };
    const button = what => dom.button(LABELS[what], () => ask(what, panel, cell));
    const inside = [dom.element('code', 'hermes-why', wanted), button('fix'), button('explain')];
    bars.set(cell, dom.bar(libraries.widgets, cell, about, inside));
  };

  dom.eachCell(given, show);

  const add = (name, label, act, kind, suits = () => true) => {
    const on = () => act(tracker.currentWidget, dom.cellMeant(given));
    const fits = () => {
      const cell = dom.cellMeant(given);
      return cell?.node.matches(kind) && suits(cell);
    };
    dom.command(given, name, label, on, fits, `.jp-Notebook ${kind}`);
  };
  for (const what of ['Fix', 'Explain']) {
    const name = what.toLowerCase();
    const suits = what === 'Fix' ? errorOf : undefined;
    add(name, `${what} this cell with Hermes`, (...at) => ask(name, ...at), '.jp-CodeCell', suits);
  }
  if (settings?.composite.composer !== 'off')
    add('about', 'Ask about this cell…', (...at) => parts.side.about(...at), '.jp-Cell');
  return {};
};
