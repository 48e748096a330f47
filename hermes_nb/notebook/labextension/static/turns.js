/* How a turn is shown in its cell, where the kernel or the page came to an end meanwhile. */
export const start = ({ cells, dom, parts, tracker }) => {
  const { kernelOf, notebookOf } = cells;
  // As in notebook/display/views.py.
  const RUNNING = '(the turn was still running when this was saved)';

  const plain = output => [output?.data?.['text/plain'] ?? ''].flat().join('');

  const ask = async (panel, hermes) => {
    const kernel = kernelOf(panel);
    return kernel ? await parts.cells.past(kernel, { hermes }) : {};
  };
  // Stop the turn of a cell, or all with '', but no other code.
  const stop = async (panel, id) => {
    const { stopped, delayed } = await ask(panel, { stop: id });
    if (delayed) parts.cells.tell('Stopping, after your cell.');
    if (!stopped && id) gone(panel, id);
    return stopped;
  };

  // A running turn has buttons that stop it or release its cell. It gives no room back: what is
  // below stays put. The cell of a turn that runs next to the others has ended.
  const stops = new WeakMap(); // [box, observer, waits], by cell widget
  const watched = new WeakSet();
  const look = (panel, cell) => {
    const { model, outputArea } = cell;
    if (outputArea && !watched.has(cell)) {
      watched.add(cell);
      model.outputs.changed.connect(() => setTimeout(() => model.isDisposed || look(panel, cell)));
    }
    const waits = model.sharedModel.executionState === 'running';
    const child = outputArea?.widgets.find((_, i) => {
      const output = model.outputs.get(i);
      return (waits || output?.metadata?.hermes_beside) && plain(output) === RUNNING;
    })?.node;
    const [old, size, waited] = stops.get(cell) ?? [];
    if (old ? old.parentNode === child && waited === waits : !child) return;
    if (old?.contains(document.activeElement)) panel.content.activate();
    old?.remove();
    size?.disconnect();
    stops.delete(cell);
    const { node } = outputArea;
    node.style.minHeight = '';
    if (!child) return;
    const box = dom.element('div', 'hermes-ui hermes-stop');
    box.append(dom.button('Stop', () => void stop(panel, model.id)));
    const release = () => void ask(panel, { detach: model.id }).then(() => look(panel, cell));
    if (waits) box.append(dom.button('Continue in background', release, 'hermes-link'));
    child.append(box);
    let height = Infinity;
    const grown = new ResizeObserver(([{ contentRect }]) => {
      node.style.minHeight = `${contentRect.height}px`;
      // Who reads the end of the answer sees it grow; who has scrolled up or types stays there.
      const [own, view] = [node, panel.content.node].map(each => each.getBoundingClientRect());
      const end = own.top + height;
      const reads = end > view.top && end <= view.bottom + 2 && own.bottom > view.bottom;
      if (reads && waits && panel.content.mode === 'command') box.scrollIntoView({ block: 'nearest' });
      height = contentRect.height;
    });
    grown.observe(node);
    stops.set(cell, [box, grown, waits]);
  };
  dom.eachCell({ tracker }, look);

  // A turn whose kernel is gone is over: what its cell shows would say "running" for ever.
  const gone = (panel, id) => {
    for (const cell of notebookOf(panel).cells) {
      if (id && cell.id !== id) continue;
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
      cell.executionState = 'idle';
      cell.setOutputs(outputs.map(ended));
    }
  };

  const runs = outputs => {
    for (let i = 0; i < outputs.length; i++) if (plain(outputs.get(i)) === RUNNING) return true;
    return false;
  };

  return {
    ask,
    gone,
    runs,
    stop,
    operations: {
      // A turn whose page was reloaded while it ran, in place of its saved outputs or of those of
      // an earlier run.
      show: (panel, { id, outputs, running, over, execution_count }) => {
        const [index, cell] = cells.code(panel, { id });
        const shown = cell.getOutputs();
        const at = shown.findIndex(output => plain(output) === running);
        const again = over && cell.executionState === 'running';
        const same = output => plain(output) === plain(outputs[0]);
        if (at < 0 && (again || shown.some(same))) return;
        const behind = over ? [] : shown.slice(at + 1);
        cell.executionState = over ? 'idle' : 'running';
        cell.setOutputs(at < 0 ? outputs : [...shown.slice(0, at), ...outputs, ...behind]);
        if (over) cell.execution_count = execution_count ?? null;
        panel.content.model.cells.get(index).trusted = true;
      }
    }
  };
};
