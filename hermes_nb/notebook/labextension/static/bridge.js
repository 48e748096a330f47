/* The page's end of the line to the kernel.
 *
 * The kernel opens a comm, every page says hello on it, once for each notebook of that kernel, and
 * the kernel addresses its requests (`{id, to, op, args}`) to one of them. The answer is
 * `{id, result}` or `{id, error: {kind, message, ...}}`.
 */
const TARGET = 'hermes_nb';
const PROTOCOL = 2; // the same number as in hermes_nb/notebook/frontend.py
const WIDGET = 'application/vnd.jupyter.widget-view+json';
const PAGE = Math.random().toString(36).slice(2);

// Each of `given.parts` has `operations`, by name, and may have `gone(panel)`: what is to happen in
// a notebook whose kernel has ended.
export const connect = ({ app, cells, tracker, ...given }) => {
  const { Refusal, kernelOf, notebookOf, pause } = cells;
  const parts = Object.values(given.parts);
  const ops = {
    info: panel => ({
      path: panel.context.localPath ?? panel.context.path,
      dirty: panel.context.model.dirty,
      cells: notebookOf(panel).cells.length,
      active: panel.content.activeCell?.model.id ?? null,
      widgets: panel.content.rendermime.mimeTypes.includes(WIDGET),
      app: app.name,
      version: app.version,
      protocol: PROTOCOL,
      undoes: true
    })
  };
  for (const { operations } of parts) Object.assign(ops, operations);

  const name = panel => `${PAGE}.${panel.id}`;

  // A kernel's comms arrive on one of the page's connections to it; the notebooks may be several.
  const panels = kernel => tracker.filter(p => kernelOf(p)?.id === kernel.id);

  const hello = (panel, cell) => ({
    hello: {
      ...ops.info(panel),
      name: name(panel),
      client: kernelOf(panel).clientId,
      holds: !cell || notebookOf(panel).cells.some(each => each.id === cell)
    }
  });

  const answer = async (kernel, { to, op, args }, boxes) => {
    try {
      const panel = panels(kernel).find(p => name(p) === to);
      if (!panel) throw new Refusal('gone', 'the notebook was closed');
      if (!Object.hasOwn(ops, op)) throw new Refusal('unknown_op', `there is no operation ${op}`);
      return { result: await ops[op](panel, args ?? {}, boxes) };
    } catch (error) {
      if (error instanceof Refusal) return { error: error.answer };
      return { error: { kind: 'failed', message: String(error?.message ?? error) } };
    }
  };

  const serve = (kernel, boxes, comm, cell) => {
    comm.onMsg = ({ content: { data } }) => {
      if (!String(data.to).startsWith(`${PAGE}.`)) return; // meant for another page
      // Not awaited: the kernel's other messages (a save takes a while) go on meanwhile.
      void answer(kernel, data, boxes).then(reply => {
        if (!comm.isDisposed) comm.send({ id: data.id, ...reply });
      });
    };
    // Kernels with subshells answer there while a cell runs: say nothing before it exists.
    const started = Promise.resolve(comm.subshellStarted).catch(() => null);
    void Promise.race([started, pause(500)]).then(() => {
      for (const panel of panels(kernel))
        void panel.context.ready.then(() => comm.isDisposed || comm.send(hello(panel, cell)));
    });
  };

  const attached = new WeakSet();
  const attach = async kernel => {
    if (!kernel?.handleComms || attached.has(kernel)) return;
    attached.add(kernel);
    // What is asked of the user here, by id. A kernel that is gone waits for no answer.
    const boxes = new Map();
    const clear = () => boxes.forEach(remove => remove());
    kernel.disposed.connect(clear);
    kernel.statusChanged.connect((_, status) => {
      if (!['autorestarting', 'restarting', 'terminating', 'dead'].includes(status)) return;
      for (const panel of panels(kernel)) for (const { gone } of parts) gone?.(panel);
      clear();
    });
    kernel.registerCommTarget(TARGET, (comm, open) =>
      serve(kernel, boxes, comm, open.content.data.cell)
    );
    // Of a page that is loaded while a cell runs the kernel hears on the comm that it has open.
    const { comms } = await given.parts.cells.past(kernel, { target_name: TARGET });
    for (const id of Object.keys(comms ?? {}))
      if (!kernel.isDisposed && !kernel.hasComm(id))
        serve(kernel, boxes, kernel.createComm(TARGET, id));
  };

  const watch = panel => {
    const now = () => void attach(kernelOf(panel)).catch(console.warn);
    panel.sessionContext.kernelChanged.connect(now);
    now();
  };
  tracker.forEach(watch);
  tracker.widgetAdded.connect((_, panel) => watch(panel));
};
