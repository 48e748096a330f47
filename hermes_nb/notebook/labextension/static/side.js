/* The panel at the side: a widget of the kernel's. */
export const start = ({ app, shared }) => {
  const WIDGET = 'application/vnd.jupyter.widget-view+json';

  return {
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
        side.node.style.cssText =
          'overflow:auto;padding:4px;background:var(--jp-layout-color1);color:var(--jp-ui-font-color1)';
        side.addWidget(view);
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
