/* What a turn changed: its way back at a click, and a quiet mark on cells that are the agent's. */
export const start = ({ cells, dom, parts, tracker }) => {
  // As in notebook/display/changes.py: no other words are run, and none of a notebook that the user
  // has not run.
  const WORDS = /^%hermes (undo \d{1,9}|trust kernel)$/;
  const TURN = /^turn \d{1,9} of ([\w-]{1,64})$/;
  const WHICH = /^\d{1,9} of [\w-]{1,64}$/;
  const OLDER = /<code title="turn (\d+ of [\w-]+)">%hermes undo/; // in answers without metadata
  const DIFF = 'details[title="Changes of this turn"]';
  const WAY_BACK = '.jp-RenderedMarkdown code[title^="turn "]';

  // Next to the cells; returns what the kernel says, which is shown unless the caller shows it.
  const run = async (panel, code, metadata, tells = true) => {
    let said = '';
    const content = { code, store_history: false, allow_stdin: true };
    const about = { ...metadata, recordTiming: false };
    const future = cells.kernelOf(panel).requestExecute(content, true, about);
    future.onIOPub = ({ content: { data, evalue } }) => {
      said += `${[data?.['text/plain'] ?? evalue ?? ''].flat().join('')}\n`;
    };
    const { content: reply } = await future.done;
    // A cell that fails takes along what waits behind it: this was not a part of "run all".
    if (reply.status === 'aborted') return run(panel, code, metadata, tells);
    if (tells && said.trim()) parts.cells.tell(said.trim(), { autoClose: 10000 });
    return said;
  };

  // Run what a line of a turn says; the kernel is told it as the application tells it what to run in
  // that cell. Returns what the kernel says.
  const follow = async (panel, code) => {
    const session = TURN.exec(code.title)?.[1];
    const words = code.textContent;
    if (!panel || !cells.kernelOf(panel) || !session || !WORDS.test(words)) return '';
    const { id: cellId, trusted, type } =
      panel.content.widgets.find(each => each.node.contains(code))?.model ?? {};
    if (cellId && !(trusted && type === 'code')) return '';
    const whose = words.startsWith('%hermes undo') ? ` of ${session}` : '';
    return run(panel, `${words}${whose}`, { cellId });
  };

  document.addEventListener('click', event => {
    const code = event.isTrusted && event.target.closest?.(WAY_BACK);
    if (!code) return;
    event.preventDefault(); // the fold stays as it is
    const has = widget => widget?.node.contains(code);
    const panel = tracker.find(p => has(p) || has(parts.side.of(p)));
    void follow(panel, code).catch(console.warn);
  });

  // ---- what can be done with a finished turn, below it ----

  const undone = new Map(); // when, by the turn's title
  const decided = new Map(); // what became of code that ran on a copy: kept, dropped or decided
  const receipts = new WeakMap(); // boxes, by cell widget
  const shown = output => [output.data?.['text/markdown'] ?? ''].flat().join('');
  const turnOf = ({ outputs }) => {
    for (let i = 0; i < outputs.length; i++) {
      const output = outputs.get(i).toJSON();
      const { turn: own, what_if: tried } = output.metadata?.hermes ?? {};
      const turn = own ?? tried ?? OLDER.exec(shown(output))?.[1];
      if (WHICH.test(turn)) return turn;
    }
    return null;
  };

  // Below a turn that ran on a copy, until the user has decided; then there is what to undo, or not.
  const tries = ({ outputs }) => Array.from({ length: outputs.length },
    (_, i) => outputs.get(i).toJSON().metadata?.hermes?.what_if).some(Boolean);
  const DONE = { keep: / is kept\.|nothing to keep/, drop: / is dropped;|nothing to keep/ };

  const fill = (box, panel, cell, turn) => {
    // The text is drawn after the output is there, and the page may draw it again.
    const fold = () =>
      cell.outputArea.node.querySelector(DIFF) ??
      cell.outputArea.node.querySelector(WAY_BACK)?.closest('details');
    const act = async (word, done) => {
      const told = await run(panel, `%hermes ${word} ${turn}`, { cellId: cell.model.id });
      if (!done.test(told)) return;
      const when = new Date().toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
      if (word in DONE) decided.set(turn, /is (kept|dropped)/.exec(told)?.[1] ?? 'decided');
      else if (word === 'redo') undone.delete(turn);
      else undone.set(turn, when);
      const focused = box.contains(document.activeElement);
      fill(box, panel, cell, turn);
      if (focused) box.querySelector('button')?.focus();
    };
    const diff = () => {
      if (fold()) fold().open = !fold().open;
    };
    const again = () => parts.cells.run(panel, panel.content.widgets.indexOf(cell));
    const when = undone.get(turn);
    const choose = ([label, word]) => dom.button(label, () => void act(word, DONE[word]));
    let made = [
      dom.button('Undo', () => void act('undo', / is undone:|nothing to undo|already undone/))
    ];
    if (tries(cell.model) && decided.get(turn) !== 'kept')
      made = decided.has(turn)
        ? [dom.element('span', 'hermes-dim', decided.get(turn))]
        : [['Keep', 'keep'], ['Drop', 'drop']].map(choose);
    else if (when)
      made = [
        dom.element('span', 'hermes-dim', `undone ${when}`),
        dom.button('Redo', () => void act('redo', / is redone:|nothing to redo|is not undone/))
      ];
    const outputs = Array.from({ length: cell.model.outputs.length }, (_, i) =>
      shown(cell.model.outputs.get(i).toJSON()));
    if (outputs.some(each => each.includes('<details title="Changes ') || OLDER.test(each)))
      made.push(dom.button('Show diff', diff));
    box.replaceChildren(...made, dom.button('Ask again', () => void again()));
  };

  const receipt = (panel, cell) => {
    const { model, outputArea } = cell;
    const mine = model.type === 'code' && model.trusted && cells.kernelOf(panel);
    const has =
      mine && model.sharedModel.executionState !== 'running' && outputArea && turnOf(model);
    const old = receipts.get(cell);
    const same = old?.dataset.turn === has && old === outputArea?.node.lastElementChild;
    if (old ? has && same : !has) return;
    old?.remove();
    receipts.delete(cell);
    if (!has) return;
    const box = dom.element('div', 'hermes-ui hermes-receipt', '', {
      role: 'group', 'aria-label': 'This turn', 'data-turn': has
    });
    fill(box, panel, cell, has);
    outputArea.node.append(box);
    receipts.set(cell, box);
  };
  dom.eachCell({ tracker }, receipt);

  // The mark is there as long as the cell is as the agent left it and nobody has accepted it.
  const accept = model => {
    const { hash, ...rest } = model.getMetadata('hermes');
    model.setMetadata('hermes', rest);
  };
  const mark = (_, cell) => {
    const old = cell.node.querySelector(':scope>.hermes-mark');
    const left = cell.model.getMetadata('hermes')?.hash;
    const same = left && left === cells.hash(cell.model.sharedModel.getSource());
    if (!same) old?.remove();
    if (!same || old) return;
    const made = dom.button('✎', () => accept(cell.model), 'hermes-mark');
    made.title = 'Written by Hermes. Click to accept.';
    cell.node.append(made);
  };
  dom.eachCell({ tracker }, mark);
  return { run };
};
