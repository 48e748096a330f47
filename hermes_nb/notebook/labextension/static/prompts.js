/* Cells that hold a prompt: shown as Markdown, completed also while the kernel is busy. */
export const start = async ({ app, editors, parts, shared }) => {
  // The MIME type stays: for the file it is a cell of code.
  const follow = async ({ codemirror, state, view: { Decoration, EditorView } }) => {
    const languages = await app.resolveOptionalService(codemirror.IEditorLanguageRegistry);
    const { support } = await languages.getLanguage('text/x-ipythongfm');
    const quiet = Decoration.line({ attributes: { style: 'color:var(--jp-ui-font-color2)' } });
    const magic = EditorView.decorations.of(Decoration.set(quiet.range(0)));
    const markdown = state.Prec.highest([support, EditorView.lineWrapping, magic]);
    const [python, mode] = [[], new state.Compartment()];
    const typing = state.EditorState.transactionExtender.of(({ newDoc, startState }) => {
      const wanted = /^%%hermes\b/.test(newDoc.sliceString(0, 9)) ? markdown : python;
      return wanted === mode.get(startState) ? null : { effects: mode.reconfigure(wanted) };
    });
    const made = { instance: () => [typing, mode.of(python)], reconfigure: () => null };
    const factory = ({ model }) => (model?.sharedModel?.cell_type === 'code' ? made : null);
    editors.addExtension({ name: 'hermes-nb:prompts', factory });
  };

  const complete = async ({ ICompletionProviderManager }, { KernelMessage }) => {
    const ask = (kernel, widgets, complete) =>
      new Promise(reply => {
        const [fragment] = /@cell:\w*$/.exec(complete) ?? [];
        const cell = ({ model: { executionCount: n } }) => (n ? `@cell:${n}` : []);
        if (fragment) return reply({ fragment, matches: widgets.flatMap(cell) });
        // On the shell channel it would wait for the running cell.
        const message = KernelMessage.createMessage({
          msgType: 'comm_info_request', // see commands/table.py
          channel: 'control',
          session: kernel.clientId,
          content: { complete }
        });
        kernel.sendControlMessage(message, true).onReply = ({ content }) => reply(content);
      });
    const manager = await app.resolveOptionalService(ICompletionProviderManager);
    manager.registerProvider({
      identifier: 'hermes-nb',
      isApplicable: async ({ editor }) => /%hermes\b/.test(editor?.model.sharedModel.getSource()),
      fetch: async ({ text, offset: end }, { session, widget }) => {
        const typed = [...text].slice(0, end).join(''); // as Python counts
        const { fragment = '', matches = [] } = await ask(session.kernel, widget.content.widgets, typed);
        return { start: end - [...fragment].length, end, items: matches.map(label => ({ label })) };
      }
    });
  };

  try {
    if (parts.edits.libraries) await follow(parts.edits.libraries);
    await complete(await shared('@jupyterlab/completer'), await shared('@jupyterlab/services'));
  } catch (error) {
    console.warn(error);
  }
  return { operations: {} };
};
