/* Edits of the agent, shown in the cells that they are for until the user has decided.
 *
 * An edit is two texts: `base`, which the cell holds, and `other`, which is shown over it and is in
 * no model. Until a question is answered the cell holds the old text: what is saved, run and shared
 * was approved. Typing, undo and other people's edits move the differing parts or set them aside.
 */
const NONE = { operations: {}, ask: () => null, approved: () => null, applied: () => {} };

export const start = given => {
  const { app, cells, diff, dom, editors, libraries, overlay, parts, tracker } = given;
  const { notebookOf } = cells;
  // With another copy than the application's own, no editor could be made at all.
  const { EditorState } = libraries.state;
  const { styleModule } = libraries.view.EditorView;
  try {
    const probe = EditorState.create({ extensions: libraries.codemirror.jupyterTheme });
    if (!probe.facet(styleModule).length) return NONE;
  } catch (error) {
    console.warn('hermes-nb: no edits are shown in cells', error);
    return NONE;
  }

  const LATE = 'the turn is over; you can still keep the change';
  const WITHDRAWN = 'A suggestion of Hermes was withdrawn: its turn has ended.';
  const UNSAVED = 'A change of Hermes is withdrawn: its cell was not saved, or changed since.';
  const open = new Set(); // proposals
  const yes = new Map(); // by proposal: what was approved and is not applied yet

  const within = notebook => [...open].filter(p => p.notebook === notebook);
  const of = ({ sharedModel: { id, notebook } }) => within(notebook).find(p => p.id === id);
  const cell = p => p.notebook.cells.find(each => each.id === p.id);
  const views = notebook => tracker.filter(panel => notebookOf(panel) === notebook);
  const cellsOf = p =>
    views(p.notebook).flatMap(panel =>
      panel.content.widgets.filter(each => each.model.id === p.id).map(each => [panel, each])
    );

  /* The parts that stand, and where; `kept` is true for one that is to be applied with the rest. */
  const standing = (p, now) => {
    const at = diff.places(p.base, now, p.parts);
    const put = p.other.split('\n');
    return p.parts.flatMap(([, , from, to], index) =>
      at[index] && p.verdicts.get(index) !== p.applied
        ? [{ index, at: at[index], put: put.slice(from, to), from, kept: p.verdicts.get(index) }]
        : []
    );
  };

  const add = (panel, id, texts) => {
    const p = { id, notebook: notebookOf(panel), verdicts: new Map(), ...texts };
    p.parts = p.whole ? [[0, p.base.split('\n').length, 0, 0]] : diff.lines(p.base, p.other);
    const before = of({ sharedModel: cell(p) });
    if (before) open.delete(before);
    open.add(p);
    cell(p).undoManager?.stopCapturing(); // what is typed from now on is undone by itself
    changed(p);
    return p;
  };

  const close = p => open.delete(p) && changed(p);

  const changed = p => {
    drawn.refresh(p);
    for (const each of within(p.notebook)) if (each !== p) drawn.caps(each);
    for (const panel of views(p.notebook)) remember(panel);
    notify();
  };

  // ---- deciding ----

  const decide = (p, keep, index) => {
    if (!open.has(p) || !cell(p)) return;
    const now = cell(p).getSource();
    const rest = standing(p, now).filter(part => part.kept === undefined);
    const chosen = rest.filter(part => index === undefined || part.index === index);
    if (keep && !p.applied && !chosen.length) return;
    if (p.applied && !keep) parts.cells.rewrite(cell(p), diff.applied(now, chosen));
    else for (const part of chosen) p.verdicts.set(part.index, keep);
    const left = standing(p, cell(p).getSource());
    if (left.some(part => part.kept === undefined)) changed(p);
    else if (p.applied) close(p);
    else settle(p, left.length ? 'once' : 'deny');
  };

  // The kernel applies what was kept; once its turn is over, the page does.
  const settle = (p, answer) => {
    if (p.answer) return p.answer(answer, answer === 'deny' ? 'rejected in the cell' : '');
    if (answer === 'once' && p.whole) p.notebook.deleteCell(p.notebook.cells.indexOf(cell(p)));
    else if (answer === 'once') parts.cells.rewrite(cell(p), merged(p));
    close(p);
  };

  const merged = p => diff.applied(cell(p).getSource(), standing(p, cell(p).getSource()));

  const decideAll = (notebook, keep) => within(notebook).forEach(p => decide(p, keep));

  // What is asked about runs only where the kernel offers that.
  const runs = p => !p.answer || p.runs;

  const keepAndRun = p => {
    p.run = cell(p).cell_type === 'code' && runs(p);
    decide(p, true);
    if (p.applied || !p.answer) run(p);
  };

  const run = p => {
    const [[panel, widget] = []] = cellsOf(p);
    if (panel) void parts.cells.run(panel, panel.content.widgets.indexOf(widget));
  };

  // After typing, an undo, another person's edit: is anything left to decide?
  const look = model => {
    const p = of(model);
    if (!p) return;
    if (p.applied && !standing(p, model.sharedModel.getSource()).length) close(p);
    else drawn.caps(p);
  };

  const title = (p, parts) => {
    if (p.whole) return 'Hermes wants to delete this cell';
    const what = parts > 1 ? `${parts} changes` : 'a change';
    if (!parts) return 'You have edited this part yourself';
    return p.applied ? `Hermes made ${what}` : `Hermes suggests ${what}`;
  };

  const drawn = overlay.overlay(given, {
    of, within, cellsOf, standing, decide, decideAll, keepAndRun, look, runs, title,
    yes: p => (p.whole ? 'Delete' : 'Keep'),
    no: p => (p.applied ? 'Undo' : 'Reject')
  });
  editors?.addExtension({
    name: 'hermes-nb:edits',
    factory: ({ model }) => {
      if (!model?.sharedModel?.cell_type) return null; // the editor of a file
      const extension = drawn.extension(model);
      return { instance: () => extension, reconfigure: () => null };
    }
  });

  // ---- what the other parts call ----

  const suggest = (panel, { tool, id, old, source, why, call }, runs) => {
    const notebook = notebookOf(panel);
    const near = notebook.cells.filter(each => each.id.startsWith(id));
    const target = near.find(each => each.id === id) ?? (near[1] ? null : near[0]);
    if (!target) return null;
    const base = target.getSource();
    const whole = tool === 'delete_cell';
    const [head, ...more] = old ? base.split(old) : [''];
    const other = whole ? '' : old ? head + source + more[0] : source;
    if ((old && more.length !== 1) || (other === base && !whole)) return null;
    return [target.id, { applied: false, base, other, whole, why, call, runs, answer: () => {} }];
  };

  /* Show what a question is about in its cells; with several, each is decided by itself. The result
   * is called once that is answered, and returns what the kernel is told of the cells; null where
   * something cannot be shown. */
  const ask = (panel, changes, done, runs) => {
    const notebook = notebookOf(panel);
    const found = changes.map(each => suggest(panel, each, runs));
    if (found.includes(null)) return null;
    const all = found.map(([id, texts]) => add(panel, id, texts));
    const denied = () => all.filter(p => p.said === 'deny').map(p => p.call);
    for (const p of all)
      p.answer = (answer, reason) => {
        p.said = answer;
        if (all.every(each => each.said)) {
          const kept = denied().length < all.length;
          done(kept ? (p.run && kept ? 'run' : 'once') : 'deny', kept ? '' : reason);
        } else close(p);
      };
    return answer => {
      const told = all.flatMap(p => {
        const index = notebook.cells.findIndex(each => each.id === p.id);
        if (!p.answer || index < 0) return []; // its kernel is gone, or its cell
        const said = answer && answer !== 'deny' && p.said !== 'deny';
        if (said && !p.whole) {
          const text = cell(p).getSource();
          const until = Date.now() + 60_000;
          yes.set(p, { text, source: merged(p), run: answer === 'run', until });
        }
        close(p);
        return [cells.describe(panel, index)];
      });
      return { cells: told, denied: answer === 'deny' ? [] : denied() };
    };
  };

  /* What the user approved for a cell as it is: its text, and to `run` it. */
  const approved = target => {
    const p = [...yes.keys()].findLast(p => p.id === target.id && p.notebook === target.notebook);
    const given = yes.get(p);
    yes.delete(p);
    return given && given.text === target.getSource() && given.until > Date.now() ? given : null;
  };

  /* Show what was applied without a question, with `old` over it. */
  const applied = (panel, target, old) => {
    const known = of({ sharedModel: target });
    // A second edit of a cell: what both together changed is to be taken back.
    const before = known?.applied ? diff.applied(old, standing(known, old)) : old;
    if (known) close(known);
    const base = target.getSource();
    if (before !== base) add(panel, target.id, { applied: true, base, other: before });
  };

  // ---- after a reload ----

  const key = panel => `hermes-nb:edits:${panel.context.path}`;

  const remember = panel => {
    const texts = within(notebookOf(panel)).filter(cell).map(p => {
      const { id, applied, whole, why } = p;
      const base = cell(p).getSource();
      return { id, applied, whole, why, base, other: merged(p), waits: Boolean(p.answer) };
    });
    sessionStorage.setItem(key(panel), JSON.stringify(texts));
  };

  const recall = panel => {
    const kept = JSON.parse(sessionStorage.getItem(key(panel)) ?? '[]');
    const notebook = notebookOf(panel);
    const missing = id => !within(notebook).some(p => p.id === id);
    let lost = false;
    for (const { id, waits, ...texts } of kept) {
      if (waits)
        setTimeout(() => !panel.isDisposed && missing(id) && parts.cells.tell(WITHDRAWN), 8000);
      else if (missing(id) && cell({ id, notebook })?.getSource() === texts.base)
        add(panel, id, { ...texts, note: texts.applied ? '' : LATE });
      else lost ||= missing(id);
    }
    if (lost) parts.cells.tell(UNSAVED);
  };

  dom.eachNotebook(tracker, panel => {
    const notebook = notebookOf(panel);
    recall(panel);
    panel.content.model.cells.changed.connect(() =>
      setTimeout(() => {
        for (const p of within(notebook))
          if (cell(p)) drawn.caps(p);
          else if (!p.answer) close(p);
      })
    );
    panel.disposed.connect(() => {
      if (views(notebook).every(each => each === panel))
        for (const p of within(notebook)) open.delete(p);
    });
  });

  // What was suggested can still be kept.
  const gone = panel => {
    for (const p of within(notebookOf(panel))) {
      if (!p.answer) continue;
      Object.assign(p, { answer: null, note: LATE });
      changed(p);
    }
  };

  // ---- commands ----

  const here = () => tracker.currentWidget;
  const active = () => tracker.activeCell && of(tracker.activeCell.model);
  const notebook = () => here() && notebookOf(here());
  const any = () => within(notebook()).length;
  const commands = {
    keep: ['Keep the Change', () => decide(active(), true), active],
    undo: ['Undo or Reject the Change', () => decide(active(), false), active],
    'keep-and-run': ['Keep the Change and Run', () => keepAndRun(active()), active],
    'next-change': ['Next Change', () => drawn.next(here()), any]
  };
  for (const [name, command] of Object.entries(commands)) dom.command(given, name, ...command);
  const notify = () => {
    for (const name in commands) app.commands.notifyCommandChanged(`hermes-nb:${name}`);
  };
  tracker.activeCellChanged.connect(notify);

  const everything = keep => decideAll(notebook(), keep);
  return { operations: {}, works: true, gone, ask, approved, applied, all: everything, any };
};
