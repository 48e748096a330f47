/* The front end's half of hermes_nb: the agent in the kernel edits the notebook that is open here.
 *
 * A module-federation container written by hand: no node, no bundler. JupyterLab hands it the share
 * scope, from which it takes the application's own copies of the libraries.
 *
 * Kernel and page talk over comms of one target. The kernel opens one, every page that shows the
 * kernel's notebook says hello on it, once for each such notebook, and the kernel addresses its
 * requests (`{id, to, op, args}`) to one of them; the others keep silent. The answer is
 * `{id, result}` or `{id, error: {kind, message, ...}}`.
 */
(() => {
  const TARGET = 'hermes_nb';
  const PROTOCOL = 2; // the same number as in hermes_nb/notebook/bridge/frontend.py
  const WIDGET = 'application/vnd.jupyter.widget-view+json';
  const RUNNING = '(the turn was still running when this was saved)'; // as in notebook/display/view.py
  const PAGE = Math.random().toString(36).slice(2);
  let scope;

  const shared = async name => {
    const versions = Object.values(scope[name] ?? {});
    if (!versions.length) throw new Error(`hermes-nb: ${name} is not shared by this application`);
    return (await (versions.find(v => v.loaded) ?? versions[0]).get())();
  };

  class Refusal extends Error {
    constructor(kind, message, more) {
      super(message);
      this.answer = { kind, message, ...more };
    }
  }

  // djb2 with xor over UTF-16 code units: source_hash in hermes_nb/notebook/document/document.py
  const hash = text => {
    let h = 5381;
    for (let i = 0; i < text.length; i++) h = ((h * 33) ^ text.charCodeAt(i)) >>> 0;
    return h.toString(16);
  };

  // Cut a value to about `room.left` characters: long texts keep head and tail, lists their head.
  const cut = (value, room) => {
    if (typeof value === 'string') {
      const left = Math.max(room.left, 0);
      room.left -= value.length;
      if (value.length <= left) return value;
      room.cut += value.length - left;
      const head = Math.ceil(left / 2);
      const gone = `\n… ${value.length - left} characters left out …\n`;
      return value.slice(0, head) + gone + value.slice(value.length - (left - head));
    }
    if (value === null || typeof value !== 'object') {
      room.left -= 8;
      return value;
    }
    if (!Array.isArray(value))
      return Object.fromEntries(Object.entries(value).map(([key, v]) => [key, cut(v, room)]));
    const kept = [];
    for (const v of value) {
      if (room.left <= 0) {
        room.cut += 1;
        break;
      }
      kept.push(cut(v, room));
    }
    return kept;
  };

  const clipped = (output, cap) => {
    const room = { left: cap, cut: 0 };
    const copy = cut(output, room);
    return room.cut ? { ...copy, hermes_clipped: room.cut } : copy;
  };

  // An output's kind without what it holds: empty values under its MIME types.
  const kind = ({ output_type, data }) => {
    const mimes = Object.keys(data ?? {}).map(mime => [mime, '']);
    return data ? { output_type, data: Object.fromEntries(mimes) } : { output_type };
  };

  // `outputs` is true for all of them, each cut to `cap` characters, or 'kinds'.
  const describe = (panel, index, outputs, cap) => {
    const cell = panel.content.model.sharedModel.cells[index];
    const source = cell.getSource();
    const about = { index, id: cell.id, type: cell.cell_type, source, hash: hash(source) };
    about.metadata = cell.getMetadata();
    if (cell.cell_type !== 'code') return about;
    about.execution_count = cell.execution_count;
    about.output_count = panel.content.model.cells.get(index).outputs.length;
    const shown = outputs === 'kinds' ? kind : o => (cap ? clipped(o, cap) : o);
    if (outputs) about.outputs = cell.getOutputs().map(shown);
    return about;
  };

  const find = (panel, id) => {
    const index = panel.content.model.sharedModel.cells.findIndex(cell => cell.id === id);
    if (index < 0) throw new Refusal('missing', `there is no cell ${id}`);
    return index;
  };

  // The cell to change, if it is what the agent saw and may be changed at all.
  const claim = (panel, { id, hash: seen }, forbidden, still) => {
    const index = find(panel, id);
    const cell = panel.content.model.sharedModel.cells[index];
    const source = cell.getSource();
    if (seen != null && hash(source) !== seen)
      throw new Refusal('conflict', `cell ${id} was changed`, { source, hash: hash(source) });
    if (forbidden && cell.getMetadata()[forbidden] === false)
      throw new Refusal('invalid', `cell ${id} is marked as not ${forbidden}`);
    if (still && cell.executionState === 'running')
      throw new Refusal('invalid', `cell ${id} is running`);
    return [index, cell];
  };

  // Run an edit as an undo step of its own: typing just before or after it is not part of it.
  const step = (managers, edit) => {
    for (const manager of managers) manager?.stopCapturing();
    const result = edit();
    for (const manager of managers) manager?.stopCapturing();
    return result;
  };

  const STYLE = `
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
outline-offset:1px}
.jp-OutputArea-output.jp-RenderedMarkdown details>details{margin-left:1.2em}
.jp-OutputArea-output.jp-RenderedMarkdown details>details>pre{white-space:pre;overflow:auto;
max-height:24em;background:var(--jp-layout-color2);padding:6px 8px;margin:4px 0 8px}
.jp-OutputArea-output.jp-RenderedMarkdown details>details>pre>code{white-space:pre;background:none}`;
  // The last rules are for a turn's calls: a table that a call printed scrolls sideways in a box of
  // its own, where the application would wrap its lines. Nothing else nests folds so.

  const element = (tag, className, text, attributes) => {
    const made = document.createElement(tag);
    made.className = className;
    if (text) made.textContent = text; // never HTML: a model wrote most of what is shown
    for (const [name, value] of Object.entries(attributes ?? {})) made.setAttribute(name, value);
    return made;
  };

  const SHOWN_LINES = 12; // of what would run, before the box scrolls
  // Keys belong to the focused element and are no shortcut of the notebook. It stands on each
  // element: on what is around them it comes too late for shortcuts of whatever has the focus.
  const OWN_KEYS = { 'data-lm-suppress-shortcuts': 'true' };

  // The box of a question; `done(answer, reason)` hears what the user chose.
  const question = ({ title, tool, lines, why, once, always, tip, outside }, done) => {
    const row = element('div', 'hermes-row');
    const button = (label, action, className) => {
      const made = element('button', className ?? '', label, { type: 'button', ...OWN_KEYS });
      // By the user's own hand: a script in some cell's output may not say yes.
      made.addEventListener('click', event => event.isTrusted && action());
      return made;
    };
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

  // Bring a box below a running cell into view, or say that it waits where its cell is out of sight:
  // nobody's page jumps away from what is being read. Returns what takes the note back.
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

  const plain = output => [output.data?.['text/plain'] ?? ''].flat().join('');

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

  // A notebook that several edit is written by its server, by itself, too: a page hears of that
  // later, takes it for another program's and would ask which version is to stay. So the server is
  // told to write, or left to where it takes no orders; what counts is what the file holds then.
  // While it writes, it refuses both.
  const writeShared = async (app, { path, localPath, model }) => {
    const { contents } = app.serviceManager;
    const { contentProviderId } = app.docRegistry.getWidgetFactory('Notebook') ?? {};
    const sources = cells => JSON.stringify(cells.map(cell => [cell.source].flat().join('')));
    const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
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

  const operations = app => {
    return {
      info: panel => ({
        path: panel.context.localPath ?? panel.context.path,
        dirty: panel.context.model.dirty,
        cells: panel.content.model.sharedModel.cells.length,
        active: panel.content.activeCell?.model.id ?? null,
        widgets: panel.content.rendermime.mimeTypes.includes(WIDGET),
        app: app.name,
        version: app.version,
        protocol: PROTOCOL
      }),
      list: (panel, { outputs, cap }) =>
        panel.content.model.sharedModel.cells.map((_, i) => describe(panel, i, outputs, cap)),
      get: (panel, { id, cap }) => describe(panel, find(panel, id), true, cap),
      insert: (panel, { after, index, type, source, metadata }) => {
        const model = panel.content.model.sharedModel;
        const end = model.cells.length;
        const at = after ? find(panel, after) + 1 : Math.min(Math.max(index ?? end, 0), end);
        const cell = { cell_type: type ?? 'code', source, metadata: metadata ?? {} };
        step([model.undoManager], () => model.insertCell(at, cell));
        return describe(panel, at);
      },
      replace: (panel, args) => {
        const [index, cell] = claim(panel, args, 'editable');
        const [old, text] = [cell.getSource(), args.source];
        // Only what differs is written, so that the user's cursor stays where it is.
        const most = Math.min(old.length, text.length);
        let head = 0;
        while (head < most && old[head] === text[head]) head++;
        let tail = 0;
        while (tail < most - head && old[old.length - 1 - tail] === text[text.length - 1 - tail])
          tail++;
        const middle = text.slice(head, text.length - tail);
        step([cell.undoManager], () => cell.updateSource(head, old.length - tail, middle));
        return describe(panel, index);
      },
      delete: (panel, args) => {
        const model = panel.content.model.sharedModel;
        const [index] = claim(panel, args, 'deletable', true);
        step([model.undoManager], () => model.deleteCell(index));
        return { deleted: args.id };
      },
      move: (panel, args) => {
        const model = panel.content.model.sharedModel;
        const [from] = claim(panel, args, null, true);
        const behind = args.after ? find(panel, args.after) : -1;
        const to = from <= behind ? behind : behind + 1;
        // The widget's own way: a rendered Markdown cell stays rendered, the selection goes along.
        if (to !== from) step([model.undoManager], () => panel.content.moveCell(from, to));
        return describe(panel, to);
      },
      outputs: (panel, args) => {
        const [index, cell] = claim(panel, args, null, true);
        if (cell.cell_type !== 'code')
          throw new Refusal('invalid', `cell ${args.id} is not a code cell`);
        cell.setOutputs(args.outputs);
        cell.execution_count = args.execution_count ?? null;
        // As after a run: what the user's own kernel made is trusted.
        panel.content.model.cells.get(index).trusted = true;
        return describe(panel, index);
      },
      // A turn whose page was reloaded while it ran, in place of what was saved of it. Without that,
      // the cell has what an earlier run left; running it had cleared that.
      show: (panel, { id, outputs, running, over, execution_count }) => {
        const index = find(panel, id);
        const cell = panel.content.model.sharedModel.cells[index];
        if (cell.cell_type !== 'code') throw new Refusal('invalid', `cell ${id} is not a code cell`);
        const shown = cell.getOutputs();
        const at = shown.findIndex(output => plain(output) === running);
        if (at < 0 && shown.some(output => plain(output) === plain(outputs[0]))) return;
        const behind = over ? [] : shown.slice(at + 1);
        cell.setOutputs(at < 0 ? outputs : [...shown.slice(0, at), ...outputs, ...behind]);
        if (over) cell.execution_count = execution_count ?? null;
        panel.content.model.cells.get(index).trusted = true;
      },
      save: async panel => {
        if (panel.context.contentsModel?.writable === false)
          throw new Refusal('invalid', 'the notebook is read-only');
        const { context } = panel;
        if (context.model.collaborative) await writeShared(app, context);
        else await context.save();
        return { dirty: context.model.dirty };
      },
      // Answers when the user has. The box is in no model, so nothing of it is ever saved: it stands
      // below the cell that asks or, where that is gone, at the side.
      ask: async (panel, args, boxes) => {
        const { Widget } = await shared('@lumino/widgets');
        const index = panel.content.widgets.findIndex(cell => cell.model.id === args.cell);
        const below = panel.content.widgets[index];
        if (below && args.again) await panel.content.scrollToItem(index, 'smart');
        return new Promise((resolve, reject) => {
          let forget = () => {};
          const done = (answer, reason) => {
            forget();
            resolve({ answer, reason: reason ?? '' });
            remove();
          };
          const widget = new Widget({ node: question(args, done) });
          const remove = () => {
            boxes.delete(args.id);
            widget.dispose();
          };
          boxes.get(args.id)?.();
          boxes.set(args.id, remove);
          widget.disposed.connect(() => {
            forget();
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
      drop: (panel, { id }, boxes) => void boxes.get(id)?.(),
      // One for each kernel, which ends with it and with its notebook. One that was hidden before the
      // page was reloaded is there `again`, but does not come forward.
      panel: async (panel, { model_id, title, area, again }, boxes) => {
        const [lumino, rendermime] = await Promise.all(
          ['@lumino/widgets', '@jupyterlab/rendermime'].map(shared)
        );
        const view = panel.content.rendermime.createRenderer(WIDGET);
        const data = { [WIDGET]: { version_major: 2, version_minor: 0, model_id } };
        await view.renderModel(new rendermime.MimeModel({ data, trusted: true }));
        boxes.get('panel')?.();
        const side = new lumino.Panel();
        const close = () => side.dispose();
        side.id = `hermes-nb-panel-${model_id}`;
        side.addClass('hermes-nb-panel');
        const label = title ?? 'Hermes';
        Object.assign(side.title, { label, caption: label, closable: true });
        side.node.style.cssText =
          'overflow:auto;padding:4px;background:var(--jp-layout-color1);color:var(--jp-ui-font-color1)';
        side.addWidget(view);
        side.onCloseRequest = close;
        boxes.set('panel', close);
        const leave = () => sessionStorage.setItem(side.id, side.isVisible);
        window.addEventListener('pagehide', leave);
        side.disposed.connect(() => {
          window.removeEventListener('pagehide', leave);
          panel.disposed.disconnect(close);
          if (boxes.get('panel') === close) boxes.delete('panel');
        });
        panel.disposed.connect(close);
        app.shell.add(side, area ?? 'right', { rank: 900 });
        const hidden = again && sessionStorage.getItem(side.id) === 'false';
        if (!hidden) app.shell.activateById(side.id);
        return { id: side.id };
      }
    };
  };

  const connect = (app, tracker) => {
    document.head.append(element('style', '', STYLE, { id: 'hermes-nb-style' }));
    const ops = operations(app);
    const names = new WeakMap();
    let count = 0;
    const name = panel => {
      if (!names.has(panel)) names.set(panel, `${PAGE}.${++count}`);
      return names.get(panel);
    };

    // A kernel's comms arrive on one of the page's connections to it; the notebooks may be several.
    const panels = kernel => tracker.filter(p => p.sessionContext.session?.kernel?.id === kernel.id);

    const hello = (panel, cell) => ({
      hello: {
        ...ops.info(panel),
        name: name(panel),
        client: panel.sessionContext.session.kernel.clientId,
        holds: panel.content.model.sharedModel.cells.some(c => c.id === cell)
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
      const late = new Promise(resolve => setTimeout(resolve, 500));
      const started = Promise.resolve(comm.subshellStarted).catch(() => null);
      void Promise.race([started, late]).then(() => {
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
      const clear = () => [...boxes.values()].forEach(remove => remove());
      kernel.disposed.connect(clear);
      kernel.statusChanged.connect((_, status) => {
        if (!['autorestarting', 'restarting', 'terminating', 'dead'].includes(status)) return;
        clear();
        panels(kernel).forEach(gone);
      });
      kernel.registerCommTarget(TARGET, (comm, open) =>
        serve(kernel, boxes, comm, open.content.data.cell)
      );
      // After a reload of the page the kernel still has its comm open: say hello on it again.
      const { content } = await kernel.requestCommInfo({ target_name: TARGET });
      for (const id of Object.keys(content.comms ?? {}))
        if (!kernel.isDisposed && !kernel.hasComm(id))
          serve(kernel, boxes, kernel.createComm(TARGET, id));
    };

    const watch = panel => {
      const now = () => void attach(panel.sessionContext.session?.kernel).catch(console.warn);
      panel.sessionContext.kernelChanged.connect(now);
      now();
    };
    tracker.forEach(watch);
    tracker.widgetAdded.connect((_, panel) => watch(panel));
  };

  (window._JUPYTERLAB ??= {})['hermes-nb'] = {
    init: given => {
      scope = given;
    },
    get: async () => {
      const { INotebookTracker } = await shared('@jupyterlab/notebook');
      const plugin = {
        id: 'hermes-nb:plugin',
        autoStart: true,
        requires: [INotebookTracker],
        activate: connect
      };
      return () => ({ __esModule: true, default: plugin });
    }
  };
})();
