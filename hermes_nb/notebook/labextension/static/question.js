/* What is asked of the user: in a box that is in no model, below the cell that asks. */
export const start = ({ app, cells, dom, libraries, parts }) => {
  const { Refusal } = cells;
  const { OWN_KEYS, button, element } = dom;

  const [HEAD_LINES, TAIL_LINES, MOST_LINES] = [8, 4, 14];
  const KEYS_AFTER = 500; // milliseconds: what was being typed when a question came is no answer

  // A line of what would run; `marks` are stretches of it with the names of their colours.
  const codeLine = ([className, text, marks]) => {
    const line = element('div', className);
    const letters = [...text]; // Python counts whole characters
    const piece = (from, to) => letters.slice(from, to).join('');
    let at = 0;
    for (const [name, from, to] of marks) {
      const span = element('span', `hermes-${name}`, piece(from, to));
      span.style.setProperty('--colour', `var(--jp-mirror-editor-${name}-color)`);
      line.append(piece(at, from), span);
      at = to;
    }
    line.append(piece(at));
    return line;
  };

  // The box of a question; `done(answer, reason)` hears what the user chose. With `choices` it is
  // none of yes or no: the reason is the answer, one of them or the user's own words.
  const question = ({ title, tool, lines, why, once, always, tip, outside, choices }, done) => {
    let since = Date.now();
    const keys = new Map(); // what each key does now; kept here, where no other script gets at it
    let hidden = lines.length > MOST_LINES ? lines.length - HEAD_LINES - TAIL_LINES : 0;
    const row = element('div', 'hermes-row');
    const label = choices ? 'Your answer' : 'Tell Hermes why (optional)';
    const about = { 'aria-label': label, placeholder: label };
    const reason = element('input', '', '', { ...OWN_KEYS, ...about });
    const say = () => done(choices ? 'once' : 'deny', reason.value.trim());
    reason.addEventListener('keydown', event => {
      if (event.key === 'Enter' && !event.isComposing) say();
    });
    const head = element('div', 'hermes-head', '', { role: 'alert' });
    const count = element('span', 'hermes-dim');
    const all = hidden ? [button('show all', () => showAll(), 'hermes-link')] : [];
    head.append(element('b', '', title), count, ...all, element('span', 'hermes-dim', tool));
    const what = choices ? 'The question' : 'What will run';
    const region = { role: 'region', 'aria-label': what, tabindex: '0', ...OWN_KEYS };
    const code = element('div', choices ? '' : 'hermes-code', '', region);
    const root = element('div', 'hermes-ui hermes-ask');

    const offer = (label, key, action, className) => {
      keys.set(key, action);
      return button(label, action, className, key);
    };
    // A yes to lines that nobody has seen is not offered: the first button shows them.
    const choose = () => {
      keys.clear();
      if (choices) {
        const made = choices.map((label, at) => {
          const one = offer(label, `${at + 1}`, () => done('once', label), at ? '' : 'hermes-first');
          return Object.assign(one, { title: label });
        });
        const other = offer(made.length ? 'Something else…' : 'Answer…', 'o', write);
        row.replaceChildren(...made, other, button('No answer', () => done('deny')));
        return;
      }
      const verb = once.split(' ')[0].toLowerCase();
      const made = hidden
        ? [offer(`Show and ${verb}…`, 'y', showAll, 'hermes-first')]
        : [offer(once, 'y', () => done('once'), 'hermes-first')];
      if (always && !hidden) made.push(offer(always, 'a', () => done('always')));
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
    root.append(head, code, element('div', 'hermes-dim', why));
    if (always) root.append(element('div', 'hermes-dim', `${always}: ${tip}.`));
    root.append(row);
    return root;
  };

  // Bring a box below a running cell into view. Where its cell is out of sight the page does not
  // jump; a note points to it. Returns what removes the note.
  const pointTo = (panel, below, box, title) => {
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
    return parts.cells.tell(title, { autoClose: false, actions }, 'warning');
  };

  return {
    operations: {
      // Answers when the user has. The box is in no model and never saved: it is below the cell
      // that asks or, where there is none, in the panel or beside it.
      ask: async (panel, args, boxes) => {
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
          const widget = new libraries.widgets.Widget({ node: question(args, done) });
          const remove = () => widget.dispose();
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
            forget = pointTo(panel, below, widget, args.title);
            return;
          }
          widget.id = `hermes-nb-ask-${args.id}`;
          Object.assign(widget.title, { label: 'Hermes asks', closable: true });
          app.shell.add(widget, 'right', { rank: 900 });
          app.shell.activateById(widget.id);
        });
      },
      drop: (panel, { id, elsewhere }, boxes) => {
        const remove = boxes.get(id);
        remove?.();
        if (remove && elsewhere) parts.cells.tell('The question was answered in another window.');
      }
    }
  };
};
