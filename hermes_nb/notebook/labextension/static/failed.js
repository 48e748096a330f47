/* Help on a cell that failed: a bar above it, commands in the palette and in the cell's menu. */
export const start = async given => {
  const { dom, parts, settings, shared, tracker } = given;
  const { Widget } = await shared('@lumino/widgets');
  const LABELS = { fix: 'Fix with Hermes', explain: 'Explain' };
  const OURS = /^\s*%{1,2}hermes\b/; // what fails there is a turn of its own

  const ask = (what, panel, { model: { id } }) => {
    // A file may have any id; one that is none would be code in the line below.
    if (!panel.sessionContext.session?.kernel || !/^[\w-]{1,64}$/.test(id)) return;
    void parts.changes.run(panel, '%load_ext hermes_nb');
    parts.cells.ask(panel, id, `%hermes ${what} --cell ${id}`);
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
    const about = { role: 'group', 'aria-label': 'This cell failed', title: wanted };
    const node = dom.element('div', 'hermes-ui hermes-cap hermes-failed', '', about);
    node.append(dom.element('span', 'hermes-what', wanted));
    for (const what of Object.keys(LABELS))
      node.append(dom.button(LABELS[what], () => ask(what, panel, cell)));
    const bar = new Widget({ node });
    bars.set(cell, bar);
    // A cell that was never in view has no inside yet.
    void cell.ready.then(() => bar.isDisposed || cell.layout.insertWidget(1, bar));
  };

  dom.eachCell(given, show);

  const add = (name, label, act, kind) => {
    const on = () => act(tracker.currentWidget, dom.cellMeant(given));
    const fits = () => dom.cellMeant(given)?.node.matches(kind);
    dom.command(given, name, label, on, fits, `.jp-Notebook ${kind}`);
  };
  for (const what of ['Fix', 'Explain']) {
    const name = what.toLowerCase();
    add(name, `${what} this cell with Hermes`, (...at) => ask(name, ...at), '.jp-CodeCell');
  }
  if (settings?.composite.composer !== 'off')
    add('about', 'Ask about this cell…', parts.side.about, '.jp-Cell');
  return {};
};
