/* An undecided change of a cell: lines and marks in its editor, and a bar above it. All of it is
 * drawn from the proposal and the cell's current text. */
export const overlay = ({ diff, dom, libraries, tracker }, deciding) => {
  const { button, element } = dom;
  const { StateEffect, StateField } = libraries.state;
  const { Decoration, EditorView, ViewPlugin, WidgetType } = libraries.view;
  const MANY = 300; // lines above which typing does not wait for the redraw
  const redraw = StateEffect.define();
  const editors = new Set(); // {editor, model}: those of this page

  // What is suggested is shown as it is: characters that hide, or turn the line round, by number.
  const HIDDEN = /[\p{Cc}\p{Cf}\u2028\u2029]/gu;
  const plainly = text =>
    text.replace(HIDDEN, c => (c === '\t' ? c : `\\u{${c.codePointAt(0).toString(16)}}`));

  // ---- in the editor ----

  // The colours of the text that is in no document are those that the editor gives its own.
  const coloured = (proposal, editor) => {
    const { language, highlightingFor } = libraries.language;
    const parser = editor.state.facet(language)?.parser;
    const tokens = [];
    const style = tags => highlightingFor(editor.state, tags);
    const put = (...token) => tokens.push(token);
    if (parser) libraries.highlight.highlightTree(parser.parse(proposal.other), { style }, put);
    return tokens;
  };

  // A line that begins at `from` of what the stretches are of.
  const row = (line, from, colours, marks) => {
    const classes = new Array(line.length).fill('');
    const paint = (stretches, name) => {
      for (const [start, end, own] of stretches)
        for (let i = Math.max(start - from, 0); i < Math.min(end - from, line.length); i++)
          classes[i] += ` ${own ?? name}`;
    };
    paint(colours);
    paint(marks, 'hermes-word');
    const made = element('div', 'hermes-line');
    for (let at = 0, to; at < line.length; at = to) {
      for (to = at + 1; classes[to] === classes[at]; ) to++;
      made.append(element('span', classes[at].trim(), plainly(line.slice(at, to))));
    }
    return made;
  };

  class Drawn extends WidgetType {
    constructor(proposal, key, lines, toDOM) {
      super();
      Object.assign(this, { proposal, key: JSON.stringify(key), lines, toDOM });
    }
    eq(other) {
      return other.proposal === this.proposal && other.key === this.key;
    }
    get estimatedHeight() {
      return 17 * this.lines || -1;
    }
  }

  const otherText = (proposal, part, editor) => {
    const count = `${part.put.length} line${part.put.length > 1 ? 's' : ''}`;
    const root = element('div', `hermes-block hermes-${proposal.applied ? 'minus' : 'plus'}`, '', {
      role: 'group',
      'aria-label': `${proposal.applied ? 'Before' : 'Suggested'}: ${count}`
    });
    proposal.colours ??= coloured(proposal, editor);
    const before = proposal.other.split('\n').slice(0, part.from);
    const start = before.reduce((sum, line) => sum + line.length + 1, 0);
    const end = start + part.put.join('\n').length;
    const colours = proposal.colours
      .filter(token => token[1] > start && token[0] < end)
      .map(([from, to, classes]) => [from - start, to - start, classes]);
    let from = 0;
    for (const line of part.put) {
      root.append(row(line, from, colours, part.marks));
      from += line.length + 1;
    }
    if (part.at === 'other') root.firstChild.prepend(controls(proposal, part));
    return root;
  };

  const decideByKeys = (root, decide, panel, more) => {
    const actions = {
      y: () => decide(true),
      n: () => decide(false),
      ']': () => next(panel()),
      Escape: () => root.closest('.jp-Cell').focus(),
      ...more
    };
    root.addEventListener('keydown', event => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      // The notebook gives a key that reaches it to its editor: Tab would never leave.
      event.stopPropagation();
      if (!event.isTrusted || !Object.hasOwn(actions, event.key)) return;
      event.preventDefault();
      actions[event.key]();
    });
  };

  // The buttons of one change, where there are several.
  const controls = (proposal, { index, kept, total }) => {
    const told = `${index + 1} of ${total}`;
    const which = `change ${told}`;
    const about = { role: 'group', 'aria-label': which, contenteditable: 'false' };
    const root = element('span', 'hermes-ui hermes-hunk', '', about);
    root.append(element('span', 'hermes-dim', kept ? `${told}, kept` : told));
    if (kept) return root;
    const here = () => deciding.cellsOf(proposal)[0];
    const decide = keep => {
      const [panel, cell] = here();
      deciding.decide(proposal, keep, index);
      next(panel, cell);
    };
    for (const [label, keep] of [['Keep', true], [deciding.no(proposal), false]]) {
      const made = button(label, () => decide(keep));
      made.setAttribute('aria-label', `${label} ${which}`);
      root.append(made);
    }
    // In an editor the notebook would take the focus for its own.
    root.addEventListener('focusin', event => event.stopPropagation());
    decideByKeys(root, decide, () => here()[0]);
    return root;
  };

  const draw = (model, doc) => {
    const proposal = deciding.of(model);
    if (!proposal) return Decoration.none;
    const now = doc.toString();
    const text = now.split('\n');
    const total = proposal.parts.length;
    const [mine, line] = [proposal.applied ? 'plus' : 'minus', n => doc.line(n + 1)];
    const made = [];
    for (const { index, at: [from, to], put, from: other, kept } of deciding.standing(proposal, now)) {
      const [left, marks] = diff.words(text.slice(from, to).join('\n'), put.join('\n'));
      const at = total === 1 ? '' : from < to ? 'own' : 'other'; // the buttons
      const part = { index, put, from: other, kept, total, marks, at };
      for (let n = from; n < to; n++)
        made.push(Decoration.line({ class: `hermes-${mine}` }).range(line(n).from));
      for (const [start, end] of left) {
        const word = Decoration.mark({ class: 'hermes-word' });
        made.push(word.range(line(from).from + start, line(from).from + end));
      }
      if (at === 'own') {
        const widget = new Drawn(proposal, [index, kept, total], 0, () => controls(proposal, part));
        made.push(Decoration.widget({ widget, side: -1 }).range(line(from).from));
      }
      if (!put.length) continue;
      // What is new stands below what it replaces.
      const above = proposal.applied ? from : to;
      const [side, where] = above < doc.lines ? [-1, line(above).from] : [1, doc.length];
      const drawn = editor => otherText(proposal, part, editor);
      const widget = new Drawn(proposal, [part, proposal.applied], put.length, drawn);
      made.push(Decoration.widget({ widget, block: true, side }).range(where));
    }
    return Decoration.set(made, true);
  };

  // Each editor of a cell has it from its creation.
  const extension = model => {
    const field = StateField.define({
      create: ({ doc }) => draw(model, doc),
      update: (value, change) => {
        if (change.effects.some(effect => effect.is(redraw))) return draw(model, change.newDoc);
        if (!change.docChanged) return value;
        return change.newDoc.lines > MANY ? value.map(change.changes) : draw(model, change.newDoc);
      },
      provide: made => EditorView.decorations.from(made)
    });
    const watch = ViewPlugin.define(editor => {
      const known = { editor, model };
      let due;
      editors.add(known);
      if (deciding.of(model)) setTimeout(() => deciding.of(model) && caps(deciding.of(model)));
      return {
        update: ({ docChanged }) => {
          if (!docChanged || !deciding.of(model)) return;
          clearTimeout(due);
          const many = editor.state.doc.lines > MANY;
          due = setTimeout(() => {
            if (many) editor.dispatch({ effects: redraw.of(null) });
            deciding.look(model);
          }, many ? 200 : 0);
        },
        destroy: () => {
          clearTimeout(due);
          editors.delete(known);
        }
      };
    });
    return [field, watch];
  };

  // ---- above the cell ----

  const made = new WeakMap(); // cell widget → {cap, proposal, rendered}

  const content = (proposal, panel, cell) => {
    const parts = deciding.standing(proposal, cell.model.sharedModel.getSource()).length;
    const all = deciding.within(proposal.notebook).length;
    const code = cell.model.type === 'code';
    const why = proposal.note || proposal.why || '';
    const shown = [];
    const add = (...made) => shown.push(button(...made));
    if (code) shown.push(element('span', 'hermes-dim', `[${cell.model.executionCount ?? ' '}]`));
    shown.push(element('b', '', deciding.title(proposal, parts)));
    shown.push(element('span', 'hermes-dim hermes-why', why, { title: why }));
    const decide = keep => deciding.decide(proposal, keep);
    if (parts) add(deciding.yes(proposal), () => decide(true), 'hermes-first', 'y');
    add(deciding.no(proposal), () => decide(false), '', 'n');
    if (parts && code && !proposal.whole && deciding.runs(proposal))
      add('Keep and run', () => deciding.keepAndRun(proposal), '', 'r');
    if (all > 1)
      for (const [word, keep] of [['Keep', true], ['Undo', false]])
        add(`${word} all ${all}`, () => deciding.decideAll(proposal.notebook, keep));
    return shown;
  };

  const uncap = (panel, cell) => {
    const old = made.get(cell);
    if (!old) return;
    made.delete(cell);
    cell.removeClass('hermes-undecided');
    const focused = old.cap.node.contains(document.activeElement);
    old.cap.dispose();
    if (cell.isDisposed) return;
    if (old.rendered) cell.rendered = true;
    if (focused) panel.content.activate();
  };

  const caps = proposal => {
    for (const [panel, cell] of deciding.cellsOf(proposal)) {
      const open = deciding.of(cell.model) === proposal;
      const old = made.get(cell);
      if (old && (!open || old.proposal !== proposal)) uncap(panel, cell);
      if (!open) continue;
      if (old?.proposal === proposal) {
        const at = [...old.cap.node.children].indexOf(document.activeElement);
        old.cap.node.replaceChildren(...content(proposal, panel, cell));
        old.cap.node.children[at]?.focus();
        continue;
      }
      const about = { 'aria-label': 'A change of Hermes' };
      const cap = dom.bar(libraries.widgets, cell, about, content(proposal, panel, cell));
      const more = { r: () => deciding.keepAndRun(proposal) };
      decideByKeys(cap.node, keep => deciding.decide(proposal, keep), () => panel, more);
      // Hidden source is shown while there is something to decide. Neither is saved.
      if (cell.inputHidden) cell.inputHidden = false;
      const rendered = Boolean(cell.rendered);
      if (rendered) cell.rendered = false;
      made.set(cell, { cap, proposal, rendered });
      cell.addClass('hermes-undecided');
    }
  };

  const refresh = proposal => {
    for (const { editor, model } of editors)
      if (model.sharedModel.id === proposal.id) editor.dispatch({ effects: redraw.of(null) });
    caps(proposal);
  };

  // To the next change, or the first one behind the last; within `cell` where it has one left.
  const next = (panel, cell) => {
    const buttons = '.hermes-hunk button:first-of-type';
    const own = cell?.node.querySelectorAll(buttons) ?? [];
    const any = `${buttons}, .hermes-cap .hermes-first`;
    const all = [...(own.length ? own : panel.node.querySelectorAll(any))];
    const here = document.activeElement;
    const behind = each => here.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING;
    const target = all.find(behind) ?? all[0];
    target?.focus();
    target?.scrollIntoView({ block: 'nearest' });
  };

  return { extension, refresh, caps, next };
};
