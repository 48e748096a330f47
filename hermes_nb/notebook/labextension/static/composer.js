/* The conversation in the panel: the prompt field, and the answers above it. They are in no cell. */
export const start = ({ cells, dom, libraries, parts }) => {
  const { outputarea, widgets } = libraries;
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
      const node = element('details', '', '');
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
      waiting.unshift({ entry, giveBack, isQueued, model });
      waiting.length = Math.min(waiting.length, 20);
      const over = ({ content }) => content && model.length || giveBack();
      output.future.done.then(over, over);
    };

    // Where a question without a cell is shown: below the answer that is being written, or below
    // the prompt that has none yet.
    const asking = () => {
      const open = waiting.filter(({ entry }) => !entry.isDisposed);
      const runs = ({ isQueued, model }) => !isQueued() && parts.turns.runs(model);
      const { entry } = open.find(runs) ?? open.find(({ model }) => !model.length) ?? {};
      if (entry) entry.node.open = true;
      return entry ?? root;
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
    answers.addClass('hermes-answers');
    foot.addClass('hermes-ui');
    foot.addClass('hermes-foot');
    root.addWidget(answers);
    root.addWidget(foot);
    // At the place of the selection, as if it were typed: the field's own undo takes it back.
    const write = (text, all) => {
      prompt.focus();
      if (all) prompt.select();
      document.execCommand('insertText', false, text);
    };
    return { asking, options, prompt, root, write };
  };

  return {
    of: panel => composers.get(panel) ?? composers.set(panel, compose(panel)).get(panel),
    has: panel => composers.has(panel),
    operations: {
      // By option: what holds now, and what may be chosen.
      choices: (panel, given) => {
        for (const select of parts.composer.of(panel).options) {
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
