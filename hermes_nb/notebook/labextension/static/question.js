/* What is asked of the user: in a box that is in no model, below the cell that asks. */
export const start = ({ app, cells, dom, parts, shared }) => {
  const { Refusal } = cells;
  const { OWN_KEYS, addStyle, button, element } = dom;

  addStyle('question', `
.hermes-ask{border:1px solid var(--jp-border-color1);border-left:3px solid var(--jp-warn-color1);
padding:8px 10px;margin:6px 0;background:var(--jp-layout-color1);color:var(--jp-ui-font-color1);
font-size:var(--jp-ui-font-size1);line-height:1.5}
.jp-Cell>.hermes-ask{margin-left:calc(var(--jp-cell-prompt-width,64px) + 8px)}
.hermes-ask .hermes-head{display:flex;gap:8px;align-items:baseline;justify-content:space-between}
.hermes-ask .hermes-dim{color:var(--jp-ui-font-color2)}
.hermes-ask .hermes-code{font:12.5px/1.5 var(--jp-code-font-family);max-height:20em;overflow:auto;
background:var(--jp-layout-color2);color:var(--jp-content-font-color1);margin:6px 0;padding:6px 0}
.hermes-ask .hermes-code div{padding:0 8px;white-space:pre-wrap;overflow-wrap:anywhere;
min-height:1.5em}
.hermes-ask .hermes-code.hermes-open{max-height:none}
.hermes-ask .hermes-fold{margin-top:4px}
.hermes-ask .hermes-add{background:color-mix(in srgb,var(--jp-success-color1) 18%,transparent)}
.hermes-ask .hermes-del{background:color-mix(in srgb,var(--jp-error-color1) 18%,transparent)}
.hermes-ask .hermes-row{display:flex;flex-wrap:wrap;gap:8px;margin-top:6px}
.hermes-ask button,.hermes-ask input{font:inherit;height:26px;box-sizing:border-box;margin:0;
border:1px solid var(--jp-border-color1);border-radius:2px;background:var(--jp-layout-color1);
color:var(--jp-ui-font-color1)}
.hermes-ask button{padding:0 12px;cursor:pointer;max-width:min(30em,100%);overflow:hidden;
text-overflow:ellipsis;white-space:nowrap}
.hermes-ask input{flex:1;min-width:8em;padding:0 8px}
.hermes-ask button:hover{background:var(--jp-layout-color2)}
.hermes-ask button.hermes-first{background:var(--jp-brand-color1);
border-color:var(--jp-brand-color1);color:var(--jp-ui-inverse-font-color1)}
.hermes-ask button.hermes-first:hover{background:var(--jp-brand-color0)}
.hermes-ask :is(button,input):focus-visible{outline:2px solid var(--jp-brand-color1);
outline-offset:1px}`);

  const SHOWN_LINES = 12; // of what would run, before the box scrolls

  // The box of a question; `done(answer, reason)` hears what the user chose.
  const question = ({ title, tool, lines, why, once, always, tip, outside }, done) => {
    const row = element('div', 'hermes-row');
    const reason = element('input', '', '', {
      ...OWN_KEYS,
      'aria-label': 'Why not?',
      placeholder: 'Why not? Hermes reads it. Enter sends, empty is fine.'
    });
    const deny = () => done('deny', reason.value.trim());
    reason.addEventListener('keydown', event => {
      if (event.key === 'Enter' && !event.isComposing) deny();
    });
    const more = [];
    if (always) {
      const forever = button(always, () => done('always'));
      forever.title = tip;
      more.push(forever);
    }
    if (outside) more.push(button(outside, () => done('outside')));
    const askWhy = () => {
      row.replaceChildren(reason, button('Deny', deny));
      reason.focus();
    };
    row.append(button(once, () => done('once'), 'hermes-first'), ...more, button('Deny…', askWhy));
    const head = element('div', 'hermes-head', '', { role: 'alert' });
    head.append(element('b', '', title), element('span', 'hermes-dim', tool));
    const about = { role: 'region', 'aria-label': 'What would run', tabindex: '0', ...OWN_KEYS };
    const code = element('div', 'hermes-code', '', about);
    code.append(...lines.map(([className, text]) => element('div', className, text)));
    const root = element('div', 'hermes-ask');
    root.append(head, code);
    if (lines.length > SHOWN_LINES) {
      // Everything is there; what the box cannot show at once is said in numbers.
      const text = open => (open ? 'Show less' : `Show all ${lines.length} lines`);
      const fold = button(text(false), () => {
        fold.textContent = text(code.classList.toggle('hermes-open'));
      });
      fold.classList.add('hermes-fold');
      root.append(fold);
    }
    root.append(element('div', 'hermes-dim', why));
    if (always) root.append(element('div', 'hermes-dim', `Always: ${tip}.`));
    root.append(row);
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
      app.shell.activateById(panel.id);
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
      // stands below the cell that asks or, where that is gone, at the side.
      ask: async (panel, args, boxes) => {
        const { Widget } = await shared('@lumino/widgets');
        const index = panel.content.widgets.findIndex(cell => cell.model.id === args.cell);
        const below = panel.content.widgets[index];
        if (below && args.again) await panel.content.scrollToItem(index, 'smart');
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
            else reject(new Refusal('gone', 'the cell was removed'));
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
      drop: (panel, { id }, boxes) => void boxes.get(id)?.()
    }
  };
};
