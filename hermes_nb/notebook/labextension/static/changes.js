/* What a turn changed: its way back at a click, and a quiet mark on cells that are the agent's. */
export const start = ({ cells, dom, parts, tracker }) => {
  // As in notebook/display/changes.py: no other words are run, and none of a notebook that the user
  // has not run.
  const WORDS = /^%hermes (undo \d{1,9}|trust kernel)$/;
  const TURN = /^turn \d{1,9} of ([\w-]{1,64})$/;
  const WAY_BACK = '.jp-RenderedMarkdown code[title^="turn "]';

  // Beside the cells; what the kernel says is shown.
  const run = async (panel, code, metadata) => {
    let said = '';
    const content = { code, store_history: false, allow_stdin: true };
    const about = { ...metadata, recordTiming: false };
    const future = cells.kernelOf(panel).requestExecute(content, true, about);
    future.onIOPub = ({ content: { data, evalue } }) => {
      said += `${[data?.['text/plain'] ?? evalue ?? ''].flat().join('')}\n`;
    };
    await future.done;
    if (said.trim()) parts.cells.tell(said.trim(), { autoClose: 10000 });
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
  const receipts = new WeakMap(); // boxes, by cell widget
  const ours = output => /<code title="turn \d+ of /.test(output?.data?.['text/markdown'] ?? '');

  const fill = (box, panel, cell) => {
    // The text is drawn after the output is there, and the page may draw it again.
    const code = () => cell.outputArea?.node.querySelector(WAY_BACK);
    const fold = () => code()?.closest('details');
    const done = () => undone.get(code()?.title);
    const undo = async () => {
      const { title } = code();
      const told = await follow(panel, code());
      if (!/ is undone:/.test(told)) return;
      const when = new Date().toLocaleTimeString([], { hour: '2-digit', minute: '2-digit' });
      undone.set(title, when);
      fill(box, panel, cell);
    };
    const diff = () => {
      if (fold()) fold().open = !fold().open;
    };
    const again = () => parts.cells.run(panel, panel.content.widgets.indexOf(cell));
    box.replaceChildren(
      done() ? dom.element('span', 'hermes-dim', `undone ${done()}`) : dom.button('Undo', undo),
      dom.button('Show diff', diff),
      dom.button('Ask again', () => void again())
    );
  };

  const receipt = (panel, cell) => {
    const { model, outputArea } = cell;
    const mine = model.type === 'code' && model.trusted && cells.kernelOf(panel);
    const has = mine && model.sharedModel.executionState !== 'running' && outputArea?.widgets.some(
      (_, i) => ours(model.outputs.get(i)?.toJSON()));
    const old = receipts.get(cell);
    if (old ? has && old === outputArea.node.lastElementChild : !has) return;
    old?.remove();
    receipts.delete(cell);
    if (!has) return;
    const box = dom.element('div', 'hermes-ui hermes-receipt', '', {
      role: 'group', 'aria-label': 'This turn'
    });
    fill(box, panel, cell);
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
