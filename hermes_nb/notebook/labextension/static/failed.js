/* Help on a cell that failed: a bar above it, commands in the palette and in the cell's menu. */
export const start = async ({ app, dom, palette, settings, shared, tracker }) => {
  const { Widget } = await shared('@lumino/widgets');
  const LABELS = { fix: 'Fix with Hermes', explain: 'Explain' };
  const OURS = /^\s*%{1,2}hermes\b/; // what fails there is a turn of its own
  dom.addStyle('failed', `
.hermes-failed .hermes-what{flex:1;min-width:40px;overflow:hidden;text-overflow:ellipsis;
font-family:var(--jp-code-font-family);font-size:var(--jp-code-font-size)}`);

  // An ordinary cell below: the same queue, stop, questions and replay as if it had been typed.
  const ask = async (what, panel, cell) => {
    const kernel = panel.sessionContext.session?.kernel;
    const { id } = cell.model;
    // A file may have any id; one that is none would be code in the line below.
    if (!kernel || !/^[\w-]{1,64}$/.test(id)) return;
    const load = { code: '%load_ext hermes_nb', silent: true, store_history: false };
    kernel.requestExecute({ ...load, allow_stdin: false }, true);
    const model = panel.content.model.sharedModel;
    const at = model.cells.findIndex(each => each.id === id) + 1;
    const source = `%hermes ${what} --cell ${id}`;
    model.insertCell(at, { cell_type: 'code', source });
    panel.content.deselectAll();
    panel.content.activeCellIndex = at;
    await app.commands.execute('notebook:run-cell');
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
    if (cell.isDisposed || cell.model.isDisposed) return;
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
      node.append(dom.button(LABELS[what], () => void ask(what, panel, cell)));
    const bar = new Widget({ node });
    bars.set(cell, bar);
    // A cell that was never in view has no inside yet.
    void cell.ready.then(() => bar.isDisposed || cell.layout.insertWidget(1, bar));
  };

  const watched = new WeakSet();
  const watch = panel => {
    const cells = () => {
      for (const cell of panel.content.widgets) {
        const later = () => setTimeout(() => show(panel, cell));
        if (!watched.has(cell) && cell.model.type === 'code')
          cell.model.outputs.changed.connect(later);
        watched.add(cell);
        later();
      }
    };
    panel.content.modelContentChanged.connect(cells);
    settings?.changed.connect(cells);
    cells();
  };
  tracker.forEach(watch);
  tracker.widgetAdded.connect((_, panel) => void panel.context.ready.then(() => watch(panel)));

  for (const what of Object.keys(LABELS)) {
    const command = `hermes-nb:${what}`;
    app.commands.addCommand(command, {
      label: what === 'fix' ? 'Fix this cell with Hermes' : 'Explain this cell with Hermes',
      isEnabled: () => tracker.activeCell?.model.type === 'code',
      execute: () => {
        if (!window.event?.isTrusted) return; // a script in some output may not begin a turn
        void ask(what, tracker.currentWidget, tracker.activeCell);
      }
    });
    palette?.addItem({ command, category: 'Hermes' });
    app.contextMenu.addItem({ command, selector: '.jp-Notebook .jp-CodeCell', rank: 20 });
  }
  return {};
};
