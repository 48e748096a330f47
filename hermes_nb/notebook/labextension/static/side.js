/* The panel at the side: a widget of the kernel's, and a field whose text becomes a prompt. */
export const start = ({ app, dom, parts, settings, shared }) => {
  const WIDGET = 'application/vnd.jupyter.widget-view+json';
  const LABEL = 'Ask Hermes (Ctrl+Enter)';
  const fields = new WeakMap(); // by notebook: what is written outlives the panel

  const field = panel => {
    const about = { ...dom.OWN_KEYS, 'aria-label': LABEL, placeholder: LABEL };
    const text = dom.element('textarea', '', '', about);
    const ask = () => {
      const prompt = text.value.trim();
      if (!prompt) return;
      text.value = '';
      parts.cells.ask(panel, panel.content.activeCell?.model.id, `%%hermes\n${prompt}`);
    };
    text.addEventListener('keydown', event => {
      if (event.isTrusted && event.key === 'Enter' && (event.ctrlKey || event.metaKey)) ask();
    });
    const root = dom.element('div', 'hermes-ui hermes-composer');
    root.append(text, dom.button('Ask', ask, 'hermes-first'));
    fields.set(panel, root);
    return root;
  };

  return {
    // Begin a prompt about a cell.
    about: async (panel, { model: { sharedModel } }) => {
      const at = () => fields.get(panel)?.closest('.hermes-nb-panel');
      if (!at()) await parts.changes.run(panel, '%load_ext hermes_nb\n%hermes panel');
      if (!at()) return;
      app.shell.activateById(at().id);
      fields.get(panel).firstChild.focus();
      const name = sharedModel.execution_count ?? sharedModel.id;
      document.execCommand('insertText', false, `@cell:${name} `);
    },
    operations: {
      // One for each kernel, which ends with it and with its notebook. One that was hidden before
      // the page was reloaded is there `again`, but does not come forward.
      panel: async (panel, { model_id, title, area, again }, boxes) => {
        const [lumino, rendermime] = await Promise.all(
          ['@lumino/widgets', '@jupyterlab/rendermime'].map(shared)
        );
        const view = panel.content.rendermime.createRenderer(WIDGET);
        const data = { [WIDGET]: { version_major: 2, version_minor: 0, model_id } };
        await view.renderModel(new rendermime.MimeModel({ data, trusted: true }));
        boxes.get('panel')?.();
        const side = new lumino.Panel();
        const close = () => side.dispose();
        side.id = `hermes-nb-panel-${model_id}`;
        side.addClass('hermes-nb-panel');
        const label = title ?? 'Hermes';
        Object.assign(side.title, { label, caption: label, closable: true });
        side.addWidget(view);
        if (settings?.composite.composer !== 'off')
          side.node.append(fields.get(panel) ?? field(panel));
        side.onCloseRequest = close;
        boxes.set('panel', close);
        const leave = () => sessionStorage.setItem(side.id, side.isVisible);
        window.addEventListener('pagehide', leave);
        side.disposed.connect(() => {
          window.removeEventListener('pagehide', leave);
          panel.disposed.disconnect(close);
          if (boxes.get('panel') === close) boxes.delete('panel');
        });
        panel.disposed.connect(close);
        app.shell.add(side, area ?? 'right', { rank: 900 });
        const hidden = again && sessionStorage.getItem(side.id) === 'false';
        if (!hidden) app.shell.activateById(side.id);
        return { id: side.id };
      }
    }
  };
};
