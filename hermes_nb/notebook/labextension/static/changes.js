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
  };

  document.addEventListener('click', event => {
    const code = event.isTrusted && event.target.closest?.(WAY_BACK);
    if (!code) return;
    event.preventDefault(); // the fold stays as it is
    const session = TURN.exec(code.title)?.[1];
    const words = code.textContent;
    const has = widget => widget?.node.contains(code);
    const panel = tracker.find(p => has(p) || has(parts.side.of(p)));
    if (!panel || !cells.kernelOf(panel) || !session || !WORDS.test(words)) return;
    // The kernel is told what the words say, as the application tells it what to run in that cell.
    const { id: cellId, trusted, type } = panel.content.widgets.find(has)?.model ?? {};
    if (cellId && !(trusted && type === 'code')) return;
    const whose = words.startsWith('%hermes undo') ? ` of ${session}` : '';
    run(panel, `${words}${whose}`, { cellId }).catch(console.warn);
  });

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
