/* The panel at the side: one for the page, which shows what belongs to the current notebook. */
export const start = ({ app, cells, dom, libraries, parts, settings, tracker }) => {
  const WIDGET = 'application/vnd.jupyter.widget-view+json';
  const OPEN = 'hermes-nb:side'; // of this tab: whether it was open when the page was left
  const { rendermime, uiComponents, widgets } = libraries;
  const { button, element } = dom;
  const composes = settings?.composite.composer !== 'off';

  const svgstr = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" width="16"><path
    class="jp-icon3 jp-icon-selectable" fill="#616161"
    d="M12 2l2.5 7.5L22 12l-7.5 2.5L12 22l-2.5-7.5L2 12l7.5-2.5z"/></svg>`;
  const kernelIconUrl = `data:image/svg+xml,${encodeURIComponent(svgstr.replace('#616161', '#1976d2'))}`;
  const icon = new uiComponents.LabIcon({ name: 'hermes-nb:icon', svgstr });

  const side = new widgets.Panel();
  const card = new widgets.Widget();
  side.id = 'hermes-nb';
  side.addClass('hermes-nb-side');
  side.node.setAttribute('aria-label', 'Hermes');
  side.node.setAttribute('role', 'region');
  Object.assign(side.title, { caption: 'Hermes', icon });
  side.addWidget(card);
  app.shell.add(side, 'right', { rank: 900 });
  window.addEventListener('pagehide', () => sessionStorage.setItem(OPEN, side.isVisible));

  const insides = new Map(); // by notebook: what is shown for it; there once the kernel's part is
  const current = () => tracker.currentWidget;

  // ---- where Hermes is not loaded ----

  const BUSY = 'A cell is running. Hermes starts after it.';
  let starting = false;

  const load = async panel => {
    await Promise.all([panel.context.ready, panel.sessionContext.ready]);
    if (insides.has(panel)) return '';
    const kernel = cells.kernelOf(panel);
    if (!kernel) return 'This notebook has no kernel. Select one in its toolbar.';
    if (kernel.status === 'busy') draw(BUSY, 'status');
    if ((await kernel.info).language_info.name !== 'python')
      return 'Hermes works in Python kernels. This kernel runs another language.';
    const run = code => parts.changes.run(panel, code, {}, false);
    const said = (await run('%load_ext hermes_nb')).trim() || (await run('%hermes panel'));
    if (insides.has(panel)) return '';
    if (!/No module named 'hermes_nb'/.test(said))
      return said.trim() || 'The panel needs the ipywidgets extension in JupyterLab.';
    return 'hermes_nb is not installed in this kernel’s environment. Run %pip install hermes-nb in a cell.';
  };
  const begin = async find => {
    if (starting) return;
    starting = true;
    draw();
    let failure = '';
    try {
      const panel = await find();
      if (panel) failure = await load(panel);
    } catch (error) {
      failure = String(error?.message ?? error);
    }
    starting = false;
    draw(failure);
    focus();
  };

  const newNotebook = async () => {
    const { specs } = app.serviceManager.kernelspecs;
    const all = Object.values(specs?.kernelspecs ?? {});
    const python = all.filter(each => each.language === 'python').map(each => each.name);
    const kernelName = python.includes(specs.default) ? specs.default : python[0];
    return app.commands.execute('notebook:create-new', { kernelName });
  };

  const draw = (told, role = 'alert') => {
    const panel = current();
    const paragraph = text => element('p', '', text);
    const [label, find] = panel ? ['Start Hermes', current] : ['New notebook', newNotebook];
    const go = button(starting ? 'Starting…' : label, () => void begin(find), 'hermes-first');
    go.disabled = starting;
    const inside = element('div', 'hermes-ui hermes-start');
    inside.append(
      element('h2', '', 'Hermes'),
      paragraph('An agent that works in your notebook’s kernel, with your variables and cells.'),
      paragraph(panel ? 'It isn’t running in this notebook yet.' : 'It needs an open notebook.'),
      go
    );
    if (told) inside.append(element('p', `hermes-${role}`, told, { role }));
    card.node.replaceChildren(inside);
  };

  const follow = () => {
    for (const [panel, inside] of insides) inside.setHidden(panel !== current());
    const inside = insides.get(current());
    card.setHidden(Boolean(inside));
    side.title.caption = inside?.title.label || 'Hermes';
    if (!inside) draw();
  };
  tracker.currentChanged.connect(follow);
  follow();

  // ---- where it is ----

  const barIn = widget => {
    if (widget.tabBar) return widget.tabBar;
    for (const child of widget.children()) {
      const found = barIn(child);
      if (found) return found;
    }
    return null;
  };
  const chat = panel => {
    const bar = insides.has(panel) && barIn(insides.get(panel));
    if (bar) bar.currentIndex = 0;
  };
  const focus = () => {
    const panel = current();
    if (insides.has(panel) && composes) parts.composer.of(panel).prompt.focus();
    else card.node.querySelector('button')?.focus();
  };
  const show = () => app.shell.activateById(side.id);

  // A prompt of the first card goes into the field.
  side.node.addEventListener('click', event => {
    const example = event.target.closest('.hermes-panel .hermes-example');
    if (!event.isTrusted || !example || !insides.has(current()) || !composes) return;
    event.stopPropagation();
    parts.composer.of(current()).write(example.textContent, true);
  }, true);

  const of = panel => insides.get(panel);
  return {
    icon,
    kernelIconUrl,
    newNotebook,
    of,
    // Open it for a notebook, with the kernel's part, and go to the prompt field.
    open: async (loads = true) => {
      show();
      const panel = current();
      if (panel && loads && !of(panel)) await begin(() => panel);
      chat(panel);
      focus();
    },
    begin: async () => {
      show();
      await begin(newNotebook);
    },
    // Where a question of a notebook that has no cell is shown, and how to get there.
    asking: panel => of(panel) && (composes ? parts.composer.of(panel).asking() : of(panel)),
    reveal: panel => {
      app.shell.activateById(panel.id);
      show();
      chat(panel);
    },
    // Begin a prompt about a cell, by the number that it shows where no other one shows it.
    about: async (panel, { model: { sharedModel } }) => {
      const { id, execution_count: number, notebook } = sharedModel;
      const two = notebook.cells.filter(cell => cell.execution_count === number)[1];
      await parts.side.open();
      if (of(panel)) parts.composer.of(panel).write(`@cell:${number && !two ? number : id} `);
    },
    operations: {
      // One for each kernel, closed with it or its notebook. One that was hidden before the page
      // was reloaded is there `again`, but stays hidden.
      panel: async (panel, { model_id, title, again }, boxes) => {
        const view = panel.content.rendermime.createRenderer(WIDGET);
        const data = { [WIDGET]: { version_major: 2, version_minor: 0, model_id } };
        const drawn = view.renderModel(new rendermime.MimeModel({ data, trusted: true }));
        // In a page that is loaded while a cell runs it waits for that: the composer does not.
        await Promise.race([drawn, cells.pause(2000)]);
        boxes.get('panel')?.();
        const inside = new widgets.Panel();
        const close = () => {
          if (composes) parts.composer.of(panel).root.parent = null;
          inside.dispose();
        };
        inside.id = `hermes-nb-panel-${model_id}`;
        inside.addClass('hermes-nb-panel');
        inside.title.label = title ?? '';
        inside.addWidget(view);
        if (composes) inside.addWidget(parts.composer.of(panel).root);
        boxes.set('panel', close);
        inside.disposed.connect(() => {
          panel.disposed.disconnect(close);
          if (insides.get(panel) === inside) insides.delete(panel);
          if (boxes.get('panel') === close) boxes.delete('panel');
          follow();
        });
        panel.disposed.connect(close);
        insides.set(panel, inside);
        side.addWidget(inside);
        follow();
        // The tabs are icons where there is little room.
        void drawn.then(() => barIn(view)?.titles.forEach(each => (each.caption = each.label)));
        if (!again || sessionStorage.getItem(OPEN) !== 'false') show();
        return { id: inside.id };
      }
    }
  };
};
