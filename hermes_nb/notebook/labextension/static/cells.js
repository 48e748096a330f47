/* The cells of an open notebook, as the agent reads and changes them: by id and by what was seen of
 * them. */

export class Refusal extends Error {
  constructor(kind, message, more) {
    super(message);
    this.answer = { kind, message, ...more };
  }
}

export const notebookOf = panel => panel.content.model?.sharedModel;
export const kernelOf = panel => panel.sessionContext.session?.kernel;
export const pause = ms => new Promise(resolve => setTimeout(resolve, ms));

// djb2 with xor over UTF-16 code units: source_hash in hermes_nb/notebook/document/document.py
export const hash = text => {
  let h = 5381;
  for (let i = 0; i < text.length; i++) h = ((h * 33) ^ text.charCodeAt(i)) >>> 0;
  return h.toString(16);
};

// Cut to about `cap` characters: long texts keep head and tail, lists their head.
const clipped = (output, cap) => {
  let [left, lost] = [cap, 0];
  const cut = value => {
    if (value === null || !['object', 'string'].includes(typeof value)) return value;
    const one = each => (left > 0 ? [cut(each)] : (lost++, []));
    if (Array.isArray(value)) return value.flatMap(one);
    if (typeof value === 'object')
      return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, cut(each)]));
    const gone = value.length - Math.max(left, 0);
    const head = Math.ceil(Math.max(left, 0) / 2);
    left -= value.length;
    if (gone <= 0) return value;
    lost += gone;
    return `${value.slice(0, head)}\n… ${gone} characters left out …\n${value.slice(head + gone)}`;
  };
  const copy = cut(output);
  return lost ? { ...copy, hermes_clipped: lost } : copy;
};

// An output's kind without what it holds: empty values under its MIME types.
const kind = ({ output_type, data }) => {
  const mimes = data && Object.keys(data).map(mime => [mime, '']);
  return mimes ? { output_type, data: Object.fromEntries(mimes) } : { output_type };
};

// `outputs` is true for all of them, each cut to `cap` characters, or 'kinds'.
export const describe = (panel, index, outputs, cap) => {
  const cell = notebookOf(panel).cells[index];
  const source = cell.getSource();
  const about = { index, id: cell.id, type: cell.cell_type, source, hash: hash(source) };
  about.metadata = cell.getMetadata();
  if (cell.cell_type !== 'code') return about;
  about.execution_count = cell.execution_count;
  about.running = cell.executionState === 'running';
  about.output_count = panel.content.model.cells.get(index).outputs.length;
  const shown = outputs === 'kinds' ? kind : o => (cap ? clipped(o, cap) : o);
  if (outputs) about.outputs = cell.getOutputs().map(shown);
  return about;
};

export const find = (panel, id) => {
  const index = notebookOf(panel).cells.findIndex(cell => cell.id === id);
  if (index < 0) throw new Refusal('missing', `there is no cell ${id}`);
  return index;
};

// The cell to change, if it is what the agent saw and may be changed at all.
export const claim = (panel, { id, hash: seen }, forbidden, still) => {
  const index = find(panel, id);
  const cell = notebookOf(panel).cells[index];
  const source = cell.getSource();
  if (seen != null && hash(source) !== seen)
    throw new Refusal('conflict', `cell ${id} was changed`, { source, hash: hash(source) });
  if (forbidden && cell.getMetadata()[forbidden] === false)
    throw new Refusal('invalid', `cell ${id} is marked as not ${forbidden}`);
  if (still && cell.executionState === 'running')
    throw new Refusal('invalid', `cell ${id} is running`);
  return [index, cell];
};

export const code = (...which) => {
  const found = claim(...which);
  if (found[1].cell_type === 'code') return found;
  throw new Refusal('invalid', `cell ${found[1].id} is not a code cell`);
};

// Run an edit as an undo step of its own, without what is typed around it.
export const step = (managers, edit) => {
  for (const manager of managers) manager?.stopCapturing();
  const result = edit();
  for (const manager of managers) manager?.stopCapturing();
  return result;
};

// The server of a shared notebook also writes it by itself; a page that hears of that later would
// ask which version to keep. So the server is told to write, and what the file holds then counts.
const writeShared = async (app, { path, localPath, model }) => {
  const { contents } = app.serviceManager;
  const { contentProviderId } = app.docRegistry.getWidgetFactory('Notebook') ?? {};
  const sources = cells => JSON.stringify(cells.map(cell => [cell.source].flat().join('')));
  const had = new Set();
  for (let wait = 100; wait < 5000; wait *= 2) {
    const now = { type: 'notebook', format: 'json', content: model.toJSON() };
    had.add(sources(now.content.cells));
    const told = contents.save(path, { ...now, contentProviderId });
    await Promise.race([told.catch(console.warn), pause(1000)]);
    const held = file => sources(file.content.cells);
    if (had.has(await contents.get(localPath).then(held, console.warn))) return;
    await pause(wait);
  }
  throw new Error('the server of the shared notebook has not written it');
};

export const start = ({ app, diff, libraries, parts }) => ({
  run: async ({ content, sessionContext }, index) => {
    content.activeCellIndex = index;
    content.deselectAll();
    await libraries.notebook.NotebookActions.run(content, sessionContext);
  },
  // Only lines that differ are written, so that the user's cursor stays where it is.
  rewrite: (cell, text) =>
    step([cell.undoManager], () =>
      cell.transact(() => {
        for (const { from, to, insert } of diff.edits(cell.getSource(), text))
          cell.updateSource(from, to, insert);
      })
    ),
  ask: (panel, after, source) => {
    const { index } = parts.cells.operations.insert(panel, { after, source });
    void parts.cells.run(panel, index);
  },
  // Say something in passing.
  tell: (message, options, kind = 'info') => {
    const { Notification } = libraries.apputils;
    const id = Notification[kind](message, { autoClose: 6000, ...options });
    return () => Notification.dismiss(id);
  },
  // Ask a kernel while a cell runs. The reply is the end: a page that was just loaded may miss the
  // messages on the kernel's state.
  past: (kernel, content) =>
    new Promise(reply => {
      const message = libraries.services.KernelMessage.createMessage({
        msgType: 'comm_info_request', // see commands/table.py
        channel: 'control',
        session: kernel.clientId,
        content
      });
      kernel.sendControlMessage(message, true).onReply = told => reply(told.content);
    }),
  operations: {
    list: (panel, { outputs, cap }) =>
      notebookOf(panel).cells.map((_, i) => describe(panel, i, outputs, cap)),
    get: (panel, { id, cap }) => describe(panel, find(panel, id), true, cap),
    insert: (panel, { after, index, type, source, metadata }) => {
      const model = notebookOf(panel);
      const end = model.cells.length;
      const at = after ? find(panel, after) + 1 : Math.min(Math.max(index ?? end, 0), end);
      const cell = { cell_type: type ?? 'code', source, metadata: metadata ?? {} };
      step([model.undoManager], () => model.insertCell(at, cell));
      return describe(panel, at);
    },
    replace: (panel, args) => {
      const [index, cell] = claim(panel, args, 'editable');
      const old = cell.getSource();
      const approved = parts.edits.approved(cell);
      parts.cells.rewrite(cell, approved ? approved.source : args.source);
      if (args.review && !approved) parts.edits.applied(panel, cell, old);
      return { ...describe(panel, index), run: Boolean(approved?.run) };
    },
    delete: (panel, args) => {
      const model = notebookOf(panel);
      const [index] = claim(panel, args, 'deletable', true);
      step([model.undoManager], () => model.deleteCell(index));
      return { deleted: args.id };
    },
    move: (panel, args) => {
      const model = notebookOf(panel);
      const [from] = claim(panel, args, null, true);
      const behind = args.after ? find(panel, args.after) : -1;
      const to = from <= behind ? behind : behind + 1;
      // The widget's own way: a rendered Markdown cell stays rendered, the selection goes along.
      if (to !== from) step([model.undoManager], () => panel.content.moveCell(from, to));
      return describe(panel, to);
    },
    outputs: (panel, args) => {
      const [index, cell] = code(panel, args, null, true);
      cell.setOutputs(args.outputs);
      cell.execution_count = args.execution_count ?? null;
      // As after a run: what the user's own kernel made is trusted.
      panel.content.model.cells.get(index).trusted = true;
      return describe(panel, index);
    },
    save: async panel => {
      const { context } = panel;
      if (context.contentsModel?.writable === false)
        throw new Refusal('invalid', 'the notebook is read-only');
      if (context.model.collaborative) await writeShared(app, context);
      else await context.save();
      return { dirty: context.model.dirty };
    }
  }
});
