/* Cells that hold a prompt: shown as Markdown, with a menu, completed also in a busy kernel. */
export const start = async given => {
  const { app, cells, dom, editors, libraries, parts } = given;
  const menus = {};

  // Options of a prompt's first line, in the menu of its cell.
  const command = 'hermes-nb:option';
  app.commands.addCommand(command, {
    label: ({ value }) => value,
    execute: ({ name, value }) => {
      const cell = dom.cellMeant(given)?.model.sharedModel;
      const [first] = /^%%hermes\b.*/.exec(cell?.getSource()) ?? [];
      if (!first || !dom.byHand(app, command)) return;
      const text = `${first.replace(new RegExp(` --${name} \\S+`), '')} --${name} ${value}`;
      cells.step([cell.undoManager], () => cell.updateSource(0, first.length, text));
    }
  });
  for (const [name, label] of [['approve', 'Mode'], ['model', 'Model']]) {
    const submenu = new libraries.widgets.Menu({ commands: app.commands });
    submenu.title.label = `${label} of This Prompt`;
    const selector = '.jp-CodeCell:has(.hermes-prompt)';
    const entry = { type: 'submenu', submenu, selector, rank: 21 };
    let added;
    menus[name] = values => {
      submenu.clearItems();
      for (const value of values) submenu.addItem({ command, args: { name, value } });
      added?.dispose();
      added = values.length ? app.contextMenu.addItem(entry) : null;
    };
  }
  menus.approve(['ask', 'edits', 'all', 'never']);

  // The MIME type stays: for the file it is a cell of code.
  const follow = async ({ codemirror, state, view: { Decoration, EditorView } }) => {
    const languages = await app.resolveOptionalService(codemirror.IEditorLanguageRegistry);
    const { support } = await languages.getLanguage('text/x-ipythongfm');
    const quiet = Decoration.line({ class: 'hermes-prompt' });
    const magic = EditorView.decorations.of(Decoration.set(quiet.range(0)));
    const line = state.Prec.highest([support, EditorView.lineWrapping]);
    const [python, cell, mode] = [[], [line, magic], new state.Compartment()];
    const typing = state.EditorState.transactionExtender.of(({ newDoc, startState }) => {
      const [head, two] = /^%(%?)hermes\b/.exec(newDoc.sliceString(0, 9)) ?? [];
      const alone = head && newDoc.lines < 2 ? line : python;
      const wanted = two ? cell : alone;
      return wanted === mode.get(startState) ? null : { effects: mode.reconfigure(wanted) };
    });
    const made = { instance: () => [typing, mode.of(python)], reconfigure: () => null };
    const factory = ({ model }) => (model?.sharedModel?.cell_type === 'code' ? made : null);
    editors.addExtension({ name: 'hermes-nb:prompts', factory });
  };

  const ask = async (kernel, widgets, complete) => {
    const [fragment] = /@cell:\w*$/.exec(complete) ?? [];
    const cell = ({ model: { executionCount: n } }) => (n ? `@cell:${n}` : []);
    if (fragment) return { fragment, matches: widgets.flatMap(cell) };
    return parts.cells.past(kernel, { complete });
  };
  const provider = {
    identifier: 'hermes-nb',
    isApplicable: async ({ editor }) => /%hermes\b/.test(editor?.model.sharedModel.getSource()),
    fetch: async ({ text, offset: end }, { session, widget }) => {
      const typed = [...text].slice(0, end).join(''); // as Python counts
      const { widgets } = widget.content;
      const { fragment = '', matches = [] } = await ask(session.kernel, widgets, typed);
      return { start: end - [...fragment].length, end, items: matches.map(label => ({ label })) };
    }
  };

  try {
    if (parts.edits.works) await follow(libraries);
    const { ICompletionProviderManager } = libraries.completer;
    (await app.resolveOptionalService(ICompletionProviderManager)).registerProvider(provider);
  } catch (error) {
    console.warn(error);
  }
  return { operations: {}, menus };
};
