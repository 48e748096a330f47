/* What is asked of the user: in a box that is in no model, below the cell that asks. */
export const start = ({ app, cells, dom, parts, shared }) => {
  const { Refusal } = cells;
  const { OWN_KEYS, button, element } = dom;

  // What stands in place of the middle of a long text, until it is asked for.
  const HEAD_LINES = 8;
  const TAIL_LINES = 4;
  const MOST_LINES = 14;
  const KEYS_AFTER = 500; // milliseconds: what was being typed when a question came is no answer

  // A line of what would run; `marks` are stretches of it with the names of their colours.
  const codeLine = ([className, text, marks]) => {
    const line = element('div', className);
    const letters = [...text]; // Python counts whole characters
    let at = 0;
    for (const [name, from, to] of marks ?? []) {
      line.append(letters.slice(at, from).join(''));
      line.append(element('span', `hermes-${name}`, letters.slice(from, to).join('')));
      at = to;
    }
    line.append(letters.slice(at).join(''));
    return line;
  };

  // The box of a question; `done(answer, reason)` hears what the user chose. With `choices` it is
  // none of yes or no: the reason is the answer, one of them or the user's own words.
  const question = ({ title, tool, lines, why, once, always, tip, outside, choices }, done) => {
    let since = Date.now();
    const keys = new Map(); // what each key does now; kept here, where no other script gets at it
    let hidden = lines.length > MOST_LINES ? lines.length - HEAD_LINES - TAIL_LINES : 0;
    const row = element('div', 'hermes-row');
    const reason = element('input', '', '', {
      ...OWN_KEYS,
      'aria-label': choices ? 'Your answer' : 'Why not?',
      placeholder: choices
        ? 'Your answer. Enter sends.'
        : 'Why not? Hermes reads it. Enter sends, empty is fine.'
    });
    const say = () => done(choices ? 'once' : 'deny', reason.value.trim());
    reason.addEventListener('keydown', event => {
      if (event.key === 'Enter' && !event.isComposing) say();
    });
    const head = element('div', 'hermes-head', '', { role: 'alert' });
    const count = element('span', 'hermes-dim');
    const all = hidden ? [button('show all', () => showAll(), 'hermes-link')] : [];
    head.append(element('b', '', title), count, ...all, element('span', 'hermes-dim', tool));
    const what = choices ? 'The question' : 'What would run';
    const about = { role: 'region', 'aria-label': what, tabindex: '0', ...OWN_KEYS };
    const code = element('div', choices ? '' : 'hermes-code', '', about);
    const root = element('div', 'hermes-ui hermes-ask');

    const offer = (label, key, action, className) => {
      const made = button(label, action, className);
      keys.set(key, action);
      made.setAttribute('aria-keyshortcuts', key);
      made.append(element('kbd', '', key, { 'aria-hidden': 'true' }));
      return made;
    };
    // A yes to lines that nobody has seen is not offered: the first button shows them.
    const choose = () => {
      keys.clear();
      if (choices) {
        const made = choices.map((label, at) =>
          offer(label, `${at + 1}`, () => done('once', label), at ? '' : 'hermes-first')
        );
        made.forEach((each, at) => (each.title = choices[at]));
        const other = offer(made.length ? 'Something else…' : 'Answer…', 'o', write);
        row.replaceChildren(...made, other, button('No answer', () => done('deny')));
        return;
      }
      const verb = once.split(' ')[0].toLowerCase();
      const made = hidden
        ? [offer(`Show and ${verb}…`, 'y', showAll, 'hermes-first')]
        : [offer(once, 'y', () => done('once'), 'hermes-first')];
      if (always && !hidden) {
        const forever = offer(always, 'a', () => done('always'), 'hermes-always');
        forever.title = `Allows ${tip}.`;
        made.push(forever);
      }
      if (outside && !hidden) made.push(button(outside, () => done('outside')));
      row.replaceChildren(...made, offer('Deny…', 'n', write));
    };
    const write = () => {
      keys.clear();
      const send = button(choices ? 'Answer' : 'Deny', say);
      row.replaceChildren(reason, send, button('Back', back));
      reason.focus();
    };
    const back = () => {
      choose();
      row.lastElementChild.focus();
    };
    const fill = () => {
      const made = lines.map(codeLine);
      const rest = element('div', 'hermes-gap', `… ${hidden} lines …`);
      if (hidden) made.splice(HEAD_LINES, hidden, rest);
      code.replaceChildren(...made);
      const told = `${lines.length} lines${hidden ? `, ${hidden} of them hidden` : ''}`;
      count.textContent = lines.length > MOST_LINES ? told : '';
    };
    const showAll = () => {
      const focused = root.contains(document.activeElement);
      hidden = 0;
      all.forEach(link => link.remove());
      since = Date.now();
      fill();
      choose();
      if (focused) code.focus({ preventScroll: true });
      head.scrollIntoView({ block: 'nearest' });
    };

    // Keys count while something of the question has the focus; it never takes it by itself.
    root.addEventListener('keydown', event => {
      if (!event.isTrusted || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === 'Escape' && reason.isConnected) back();
      if (event.target === reason || event.repeat || Date.now() - since < KEYS_AFTER) return;
      const action = keys.get(event.key);
      if (!action) return;
      event.preventDefault();
      action();
    });
    fill();
    choose();
    root.append(head, code, element('div', 'hermes-dim', why), row);
    if (always) root.append(element('div', 'hermes-dim hermes-scope', `Always allows ${tip}.`));
    return root;
  };

  // Bring a box below a running cell into view, or say that it waits where its cell is out of
  // sight: nobody's page jumps away from what is being read. Returns what takes the note back.
  const pointTo = (app, panel, below, box, title) => {
    const outOfSight = () => {
      const [cell, view] = [below, panel.content].map(w => w.node.getBoundingClientRect());
      return !panel.isVisible || cell.bottom <= view.top || cell.top >= view.bottom;
    };
    const bring = () => box.isDisposed || box.node.scrollIntoView({ block: 'nearest' });
    if (!outOfSight()) {
      bring();
      setTimeout(bring, 400); // what the turn says above it is still being drawn
      return () => {};
    }
    const show = async () => {
      app.shell.activateById(below.id || panel.id);
      const at = panel.content.widgets.indexOf(below);
      if (at >= 0) await panel.content.scrollToItem(at, 'smart');
      bring();
    };
    const actions = [{ label: 'Show', caption: 'Go to the question', callback: show }];
    const told = shared('@jupyterlab/apputils').then(({ Notification }) => {
      const note = Notification.warning(title, { autoClose: false, actions });
      return () => Notification.dismiss(note);
    });
    return () => void told.then(dismiss => dismiss()).catch(console.warn);
  };

  return {
    operations: {
      // Answers when the user has. The box is in no model, so nothing of it is ever saved: it
      // stands below the cell that asks or, where there is none, in the panel or beside it.
      ask: async (panel, args, boxes) => {
        const { Widget } = await shared('@lumino/widgets');
        const index = panel.content.widgets.findIndex(cell => cell.model.id === args.cell);
        const below = panel.content.widgets[index] ?? parts.side.of(panel);
        if (index >= 0 && args.again) await panel.content.scrollToItem(index, 'smart');
        return new Promise((resolve, reject) => {
          let forget = () => {};
          const done = (answer, reason) => {
            forget();
            resolve({ answer, reason: reason ?? '', ...inCell?.(answer) });
            remove();
          };
          const inCell = args.change && parts.edits.ask(panel, args.change, done);
          const widget = new Widget({ node: question(args, done) });
          const remove = () => {
            boxes.delete(args.id);
            widget.dispose();
          };
          boxes.get(args.id)?.();
          boxes.set(args.id, remove);
          widget.disposed.connect(() => {
            forget();
            inCell?.();
            boxes.delete(args.id);
            // Closed by the user at the side; or its cell was deleted, and it is asked elsewhere.
            if (!below) done('deny');
            else reject(new Refusal('gone', 'its place was removed'));
          });
          if (below) {
            below.layout.addWidget(widget);
            forget = pointTo(app, panel, below, widget, args.title);
            return;
          }
          widget.id = `hermes-nb-ask-${args.id}`;
          Object.assign(widget.title, { label: 'Hermes asks', closable: true });
          app.shell.add(widget, 'right', { rank: 900 });
          app.shell.activateById(widget.id);
        });
      },
      drop: async (panel, { id, elsewhere }, boxes) => {
        const remove = boxes.get(id);
        remove?.();
        if (!remove || !elsewhere) return;
        const { Notification } = await shared('@jupyterlab/apputils');
        Notification.info('Hermes was answered in another window.', { autoClose: 6000 });
      }
    }
  };
};
