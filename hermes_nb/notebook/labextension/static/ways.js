/* Ways to Hermes that are always there: launcher, toolbar (see the schema), palette. */
export const start = given => {
  const { app, cells, dom, libraries, palette, parts, settings, tracker } = given;
  const { element } = dom;
  const { Dialog, InputDialog, showDialog } = libraries.apputils;
  const { icon, kernelIconUrl, newNotebook } = parts.side;
  const notebook = async () => {
    const panel = tracker.currentWidget ?? (await newNotebook());
    await Promise.all([panel?.context.ready, panel?.sessionContext.ready]);
    return panel;
  };

  const add = (name, label, caption, execute, options) =>
    app.commands.addCommand(`hermes-nb:${name}`, { label, caption, icon, execute, ...options });
  const offer = name => palette?.addItem({ command: `hermes-nb:${name}`, category: 'Hermes' });

  add('panel', 'Open panel', 'Open the Hermes panel', () => parts.side.open(false));
  add('ask', 'Ask', 'Ask Hermes about this notebook', () => parts.side.open());
  add('start', 'Hermes', 'Ask Hermes in a new notebook', () => parts.side.begin());
  add('prompt', 'New prompt cell', 'Add a %%hermes cell below the selected one', async () => {
    const panel = await notebook();
    if (!panel) return;
    const { content } = panel;
    const after = content.activeCell?.model.id;
    const { index } = parts.cells.operations.insert(panel, { after, source: '%%hermes\n' });
    content.activeCellIndex = index;
    await content.scrollToItem(index, 'smart');
    await content.activeCell.ready;
    content.activeCell.editor.setCursorPosition({ line: 1, column: 0 });
    content.mode = 'edit';
    await parts.changes.run(panel, '%load_ext hermes_nb');
  });
  add('help', 'Help', 'How to use Hermes', () => {
    const body = new libraries.widgets.Widget();
    const list = element('dl', 'hermes-help');
    for (const [term, text] of [
      ['In the panel', 'Write a prompt and press Ctrl+Enter.'],
      ['In a cell', 'Write %%hermes in the first line and the prompt below it, and run the cell.'],
      ['@', '@df attaches a variable, @cell:3 a cell, @error the last error, @file:name a file.'],
      ['Ctrl+Alt+Enter', 'asks about the selected cell.'],
      ['Ctrl+Alt+Y, Ctrl+Alt+N', 'answer the open question.'],
      ['%hermes help', 'in a cell lists the commands.'],
      ['%hermes doctor', 'in a cell checks the installation.']
    ])
      list.append(element('dt', '', term), element('dd', '', text));
    body.node.append(list);
    const buttons = [Dialog.okButton({ label: 'Close' })];
    return showDialog({ title: 'Hermes', body, buttons });
  });
  for (const name of ['panel', 'prompt', 'help']) offer(name);

  // What may run without approval is chosen by the user's own hand.
  const MODES = ['ask', 'edits', 'all', 'never'];
  const mode = async () => {
    const panel = tracker.currentWidget;
    if (!panel || !cells.kernelOf(panel)) {
      await parts.side.open(false);
      return;
    }
    const { value } = await InputDialog.getItem({
      title: 'Approval mode', label: 'What Hermes may do in this kernel without asking', items: MODES
    });
    if (!MODES.includes(value)) return;
    await parts.changes.run(panel, '%load_ext hermes_nb');
    await parts.changes.run(panel, `%hermes approve ${value}`);
  };
  dom.command(given, 'mode', 'Approval mode…', () => void mode(), () => true);

  // Not awaited: the application's start does not wait for its launcher.
  const card = { command: 'hermes-nb:start', category: 'Notebook', rank: 99, kernelIconUrl };
  if (libraries.launcher)
    void app.resolveOptionalService(libraries.launcher.ILauncher)
      .then(launcher => launcher?.add(card), console.warn);
  return {};
};
