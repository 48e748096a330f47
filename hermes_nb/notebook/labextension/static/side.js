/* The panel at the side: a widget of the kernel's, and the composer, which asks without a cell. */
export const start = ({ app, cells, dom, libraries, parts, settings }) => {
  const WIDGET = 'application/vnd.jupyter.widget-view+json';
  const { outputarea, rendermime, widgets } = libraries;
  const { OWN_KEYS, button, element } = dom;
  const composers = new WeakMap(); // by notebook: they outlive their panels
  const control = (tag, title) =>
    element(tag, '', '', { ...OWN_KEYS, title, 'aria-label': title, placeholder: title });

  const compose = panel => {
    const [root, answers, foot] = [new widgets.Panel(), new widgets.Panel(), new widgets.Widget()];
    const waiting = []; // the latest prompts
    const prompt = control('textarea', 'Ask Hermes (Ctrl+Enter)');
    const options = ['approve', 'model'].map(name => control('select', name));
    const kernel = () => cells.kernelOf(panel);

    const send = async (run, { beside = '', steers = false } = {}) => {
      const text = prompt.value.trim();
      if (!text || !kernel()) return;
      if (steers && (await parts.turns.ask(panel, { steer: text })).steered) {
        prompt.value = '';
        parts.cells.tell('Hermes reads this before its next request.');
        return;
      }
      const chosen = options.map(({ title, value }) => value && ` --${title} ${value}`);
      prompt.value = '';
      run(`%%hermes${beside}${chosen.join('')}\n${text}`, text);
    };
    const queue = () => send(here, { beside: ' --background' });
    const steer = () => send(here, { beside: ' --background', steers: true });
    const stop = async () => {
      for (const { giveBack, isQueued } of waiting) if (isQueued()) giveBack();
      if (!(await parts.turns.stop(panel, ''))) parts.cells.tell('No turn is running.');
    };
    const asCell = code => parts.cells.ask(panel, panel.content.activeCell?.model.id, code);
    const here = (code, text) => {
      const model = new outputarea.OutputAreaModel({ trusted: true });
      const output = new outputarea.OutputArea({ model, rendermime: panel.content.rendermime });
      const node = element('details', '', '', { name: panel.id }); // one is open
      const entry = new widgets.Widget({ node });
      node.append(element('summary', '', text));
      entry.layout = new widgets.PanelLayout();
      entry.layout.addWidget(output);
      answers.insertWidget(0, entry);
      answers.widgets[20]?.dispose();
      const isQueued = () =>
        model.length > 0 && /^waiting for \[/.test(model.get(0).metadata.hermes_beside);
      const begin = () => {
        node.classList.toggle('hermes-queued', isQueued());
        if (isQueued()) return;
        node.open = true;
        model.changed.disconnect(begin);
      };
      const content = { code, stop_on_error: true };
      output.future = kernel().requestExecute(content, false, { recordTiming: false });
      model.changed.connect(begin);
      output.inputRequested.connect(begin);
      // What waits behind a turn that is stopped is not run; a kernel may end.
      const giveBack = () => {
        if (entry.isDisposed) return;
        prompt.value = `${prompt.value}\n\n${text}`.trim();
        entry.dispose();
      };
      waiting.unshift({ giveBack, isQueued });
      waiting.length = Math.min(waiting.length, 20);
      const over = ({ content }) => content && model.length || giveBack();
      output.future.done.then(over, over);
    };

    prompt.addEventListener('keydown', event => {
      if (event.isTrusted && event.key === 'Enter' && (event.ctrlKey || event.metaKey)) void steer();
    });
    foot.node.append(
      prompt,
      ...options,
      button('as a cell', () => void send(asCell), 'hermes-link'),
      button('After this', () => void queue(), 'hermes-link'),
      button('■ Stop', () => void stop()),
      button('Ask', () => void steer(), 'hermes-first')
    );
    root.addClass('hermes-composer');
    foot.addClass('hermes-ui');
    root.addWidget(answers);
    root.addWidget(foot);
    return { root, prompt, options };
  };

  const composer = panel =>
    composers.get(panel) ?? composers.set(panel, compose(panel)).get(panel);
  const of = panel => composers.get(panel)?.root.parent;

  return {
    of,
    // Begin a prompt about a cell, by the number that it shows where no other one shows it.
    about: async (panel, { model: { sharedModel } }) => {
      if (!of(panel)) await parts.changes.run(panel, '%load_ext hermes_nb\n%hermes panel');
      if (!of(panel)) return;
      const { id, execution_count: number, notebook } = sharedModel;
      const two = notebook.cells.filter(cell => cell.execution_count === number)[1];
      app.shell.activateById(of(panel).id);
      composer(panel).prompt.focus();
      document.execCommand('insertText', false, `@cell:${number && !two ? number : id} `);
    },
    operations: {
      // One for each kernel, closed with it or its notebook. One that was hidden before the page
      // was reloaded is there `again`, but stays in the background.
      panel: async (panel, { model_id, title, area, again }, boxes) => {
        const view = panel.content.rendermime.createRenderer(WIDGET);
        const data = { [WIDGET]: { version_major: 2, version_minor: 0, model_id } };
        const drawn = view.renderModel(new rendermime.MimeModel({ data, trusted: true }));
        // In a page that is loaded while a cell runs it waits for that: the composer does not.
        await Promise.race([drawn, cells.pause(2000)]);
        boxes.get('panel')?.();
        const side = new widgets.Panel();
        const { root } = composer(panel);
        const close = () => {
          root.parent = null;
          side.dispose();
        };
        side.id = `hermes-nb-panel-${model_id}`;
        side.addClass('hermes-nb-panel');
        const label = title ?? 'Hermes';
        Object.assign(side.title, { label, caption: label, closable: true });
        side.addWidget(view);
        if (settings?.composite.composer !== 'off') side.addWidget(root);
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
      },
      // By option: what holds now, and what may be chosen.
      choices: (panel, given) => {
        for (const select of composer(panel).options) {
          const { title, value } = select;
          const [now, ...others] = given[title];
          select.replaceChildren(new Option(now, ''), ...others.map(each => new Option(each)));
          if (others.includes(value)) select.value = value;
          parts.prompts.menus[title]?.(others);
        }
      }
    }
  };
};
