/* How a turn is shown in its cell, where the kernel or the page came to an end meanwhile. */
export const start = ({ cells, dom, tracker }) => {
  const { Refusal, find } = cells;
  // As in notebook/display/views.py.
  const RUNNING = '(the turn was still running when this was saved)';

  // For a turn's calls: a table that a call printed scrolls sideways in a box of its own, where
  // the application would wrap its lines. Nothing else nests folds so.
  dom.addStyle('turns', `
.jp-OutputArea-output.jp-RenderedMarkdown details>details{margin-left:1.2em}
.jp-OutputArea-output.jp-RenderedMarkdown details>details>pre{white-space:pre;overflow:auto;
max-height:24em;background:var(--jp-layout-color2);padding:6px 8px;margin:4px 0 8px}
.jp-OutputArea-output.jp-RenderedMarkdown details>details>pre>code{white-space:pre;background:none}
.jp-RenderedMarkdown>blockquote>pre{white-space:pre;overflow:hidden}
.jp-OutputArea-child:has(>.hermes-stop){position:relative}
.jp-OutputArea-child:has(>.hermes-stop) p:last-child{padding-right:5em}
.hermes-stop{position:absolute;right:4px;bottom:6px}
.hermes-stop button{font-size:12px;line-height:20px}`);

  const plain = output => [output.data?.['text/plain'] ?? ''].flat().join('');

  // While a turn runs its status line has a button that stops it, and what it took of the page it
  // keeps: what is below would move up and down.
  const taken = new Set(); // ids of cells whose turn began before this page was loaded
  const stops = new WeakMap(); // by cell widget
  const look = (panel, cell) => {
    const { model, outputArea } = cell;
    const here = model.sharedModel.executionState !== 'idle' || taken.has(model.id);
    const child = outputArea?.widgets.find(
      (_, i) => here && i < model.outputs.length && plain(model.outputs.get(i)) === RUNNING
    )?.node;
    const old = stops.get(cell);
    if (old?.stop.parentNode === child) return;
    stops.delete(cell);
    if (old?.stop.contains(document.activeElement)) panel.content.activate();
    old?.end();
    if (!child) return;
    const { style } = outputArea.node;
    const interrupt = () => void panel.sessionContext.session?.kernel?.interrupt();
    const stop = dom.element('div', 'hermes-ui hermes-stop');
    stop.append(dom.button('■ Stop', interrupt));
    stop.firstChild.setAttribute('aria-label', 'Stop this turn');
    child.append(stop);
    const size = new ResizeObserver(([{ contentRect }]) => {
      style.minHeight = `${contentRect.height}px`;
    });
    size.observe(outputArea.node);
    const end = () => {
      size.disconnect();
      style.minHeight = '';
      stop.remove();
    };
    stops.set(cell, { stop, end });
  };
  cells.watchOutputs(tracker, look);

  // A turn whose kernel is gone is over: what its cell shows would say "running" for ever.
  const gone = panel => {
    for (const cell of panel.content.model.sharedModel.cells) {
      const outputs = cell.cell_type === 'code' ? cell.getOutputs() : [];
      if (!outputs.some(output => plain(output) === RUNNING)) continue;
      const ended = output => {
        if (plain(output) !== RUNNING) return output;
        const shown = [output.data['text/markdown'] ?? ''].flat().join('');
        const markdown = shown.replace(/^(> (?:↳ )?)◌/gm, '$1■').replace(
          /<sub>◌ (?:running(?: · )?)?/, '<sub>■ the kernel ended · ');
        const data = { 'text/markdown': markdown, 'text/plain': '(the kernel ended in this turn)' };
        return { ...output, data };
      };
      cell.setOutputs(outputs.map(ended));
    }
  };

  return {
    gone,
    operations: {
      // A turn whose page was reloaded while it ran, in place of what was saved of it. Without
      // that, the cell has what an earlier run left; running it had cleared that.
      show: (panel, { id, outputs, running, over, execution_count }) => {
        const index = find(panel, id);
        taken[over ? 'delete' : 'add'](id);
        const cell = panel.content.model.sharedModel.cells[index];
        if (cell.cell_type !== 'code') throw new Refusal('invalid', `cell ${id} is not a code cell`);
        const shown = cell.getOutputs();
        const at = shown.findIndex(output => plain(output) === running);
        if (at < 0 && shown.some(output => plain(output) === plain(outputs[0]))) return;
        const behind = over ? [] : shown.slice(at + 1);
        cell.setOutputs(at < 0 ? outputs : [...shown.slice(0, at), ...outputs, ...behind]);
        if (over) cell.execution_count = execution_count ?? null;
        panel.content.model.cells.get(index).trusted = true;
      }
    }
  };
};
