/* What is asked of the user: in a box that is in no model, below the cell that asks. */
export const start = given => {
  const { app, cells, dom, libraries, parts } = given;
  const { Refusal } = cells;
  const { OWN_KEYS, button, element } = dom;

  const MANY = 14; // lines above which their number is shown
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

  const open = new Set(); // {panel, root, press, show}: what was asked and is not answered
  let following = false; // the last one was answered from within

  // The box of a question; `done(answer, reason)` hears what the user chose. With `choices` it is
  // none of yes or no: the reason is the answer, one of them or the user's own words.
  const question = (args, done) => {
    const { title, tool, lines, why, tip, choices } = args;
    const since = Date.now();
    const keys = new Map(); // what each key does now; kept here, where no other script gets at it
    const row = element('div', 'hermes-row');
    const label = choices ? 'Your answer' : 'Tell Hermes why (optional)';
    const about = { 'aria-label': label, placeholder: label };
    const reason = element('input', '', '', { ...OWN_KEYS, ...about });
    const say = () => done(choices ? 'once' : 'deny', reason.value.trim());
    reason.addEventListener('keydown', event => {
      if (event.key === 'Enter' && !event.isComposing) say();
    });
    const head = element('div', 'hermes-head', '', { role: 'alert' });
    const count = lines.length > MANY ? `${lines.length} lines` : '';
    const dim = text => element('span', 'hermes-dim', text);
    head.append(element('b', '', title), dim(count), dim(tool));
    const what = choices ? 'The question' : 'What will run';
    const region = { role: 'region', 'aria-label': what, tabindex: '0', ...OWN_KEYS };
    const code = element('div', choices ? '' : 'hermes-code', '', region);
    code.append(...lines.map(codeLine));
    const root = element('div', 'hermes-ui hermes-ask');

    const offer = (label, key, action, className) => {
      keys.set(key, action);
      return button(label, action, className, key);
    };
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
      const made = [offer(args.once, 'y', () => done('once'), 'hermes-first')];
      for (const [answer, key] of [['run', 'r'], ['turn', 't'], ['always', 'a'], ['outside', 'o']])
        if (args[answer]) made.push(offer(args[answer], key, () => done(answer)));
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
    const press = key => Date.now() - since >= KEYS_AFTER && keys.get(key)?.();

    // Keys count while something of the question has the focus.
    root.addEventListener('keydown', event => {
      if (!event.isTrusted || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === 'Escape' && reason.isConnected) back();
      if (event.target === reason || event.repeat || !keys.has(event.key)) return;
      event.preventDefault();
      press(event.key);
    });
    choose();
    root.append(head, code, dim(why));
    if (args.always) root.append(element('div', 'hermes-dim', `${args.always}: ${tip}.`));
    root.append(row);
    return { root, press, focus: () => code.focus({ preventScroll: true }) };
  };

  // Whether the user sees it: what is out of sight is shown at first, and not answered.
  const seen = ({ root }) => {
    const { top, bottom, height } = root.getBoundingClientRect();
    return height > 0 && top >= 0 && bottom <= window.innerHeight;
  };
  const answer = key => {
    const here = [...open].filter(each => each.panel === app.shell.currentWidget);
    const one = [...open].find(each => each.root.contains(document.activeElement));
    const meant = one ?? here[0] ?? [...open][0];
    if (!meant) return parts.edits.all?.(key === 'y');
    if (seen(meant)) meant.press(key);
    else void meant.show();
  };
  // The prompt field and the buttons keep their keys to themselves, but not these two.
  document.addEventListener('keydown', event => {
    const { altKey, ctrlKey, key, metaKey, target } = event;
    const command = { y: 'yes', n: 'no' }[key.toLowerCase()];
    if (!event.isTrusted || !altKey || !(ctrlKey || metaKey) || !command || event.repeat) return;
    if (!target.closest?.('.hermes-ui [data-lm-suppress-shortcuts=true]')) return;
    event.preventDefault();
    void app.commands.execute(`hermes-nb:${command}`);
  });
  const any = () => open.size || parts.edits.any?.();
  dom.command(given, 'yes', 'Answer Yes, or Keep All Changes', () => answer('y'), any);
  dom.command(given, 'no', 'Answer No, or Undo All Changes', () => answer('n'), any);

  // Bring a box below a running cell into view. Where its cell is out of sight the page does not
  // jump; a note points to it. Returns what removes the note, and what shows the box.
  const pointTo = (panel, below, box, title) => {
    const outOfSight = () => {
      const [cell, view] = [below, panel.content].map(w => w.node.getBoundingClientRect());
      return !panel.isVisible || cell.bottom <= view.top || cell.top >= view.bottom;
    };
    const bring = () => box.isDisposed || box.node.scrollIntoView({ block: 'nearest' });
    const show = async () => {
      const at = panel.content.widgets.indexOf(below);
      if (at < 0) parts.side.reveal(panel);
      else app.shell.activateById(panel.id);
      if (at >= 0) await panel.content.scrollToItem(at, 'smart');
      const fold = box.node.closest('details');
      if (fold) fold.open = true;
      bring();
    };
    if (!outOfSight()) {
      bring();
      setTimeout(bring, 400); // what the turn says above it is still being drawn
      return [() => {}, show];
    }
    const actions = [{ label: 'Show', caption: 'Go to the question', callback: show }];
    return [parts.cells.tell(title, { autoClose: false, actions }, 'warning'), show];
  };

  return {
    operations: {
      // Answers when the user has. The box is in no model and never saved: it is below the cell
      // that asks or, where there is none, below its answer in the panel, or next to the panel.
      ask: async (panel, args, boxes) => {
        const index = panel.content.widgets.findIndex(cell => cell.model.id === args.cell);
        const below = panel.content.widgets[index] ?? parts.side.asking(panel);
        if (index >= 0 && args.again) await panel.content.scrollToItem(index, 'smart');
        return new Promise((resolve, reject) => {
          const asked = { panel };
          let forget = () => {};
          const done = (answer, reason) => {
            forget();
            following = asked.root.contains(document.activeElement);
            resolve({ answer, reason: reason ?? '', ...(inCell && inCell(answer)) });
            remove();
            if (following) [...open].find(each => each.panel === panel)?.focus();
          };
          const changes = (args.changes ?? [args.change]).filter(Boolean);
          const inCell = changes.length && parts.edits.ask(panel, changes, done, Boolean(args.run));
          Object.assign(asked, question(args, done));
          const widget = new libraries.widgets.Widget({ node: asked.root });
          const remove = () => widget.dispose();
          boxes.get(args.id)?.();
          boxes.set(args.id, remove);
          open.add(asked);
          widget.disposed.connect(() => {
            forget();
            if (inCell) inCell();
            open.delete(asked);
            boxes.delete(args.id);
            // Closed by the user at the side; or its cell was deleted, and it is asked elsewhere.
            if (!below) done('deny');
            else reject(new Refusal('gone', 'its place was removed'));
          });
          if (below) {
            below.layout.addWidget(widget);
            [forget, asked.show] = pointTo(panel, below, widget, args.title);
          } else {
            widget.id = `hermes-nb-ask-${args.id}`;
            Object.assign(widget.title, { label: 'Hermes asks', closable: true });
            app.shell.add(widget, 'right', { rank: 900 });
            asked.show = () => app.shell.activateById(widget.id);
            asked.show();
          }
          // Whoever answered the one before by keys answers this one so; typing is not disturbed.
          const idle = [document.body, panel.content.node, below?.node];
          if (following && idle.includes(document.activeElement)) asked.focus();
          following = false;
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
