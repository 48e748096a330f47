/* What stands over a cell's text while something is to be decided: lines and marks in its editor,
 * and a bar above it. All of it is drawn from the proposal and the text that the cell has now.
 */
export const overlay = ({ diff, dom, libraries, tracker }, deciding) => {
  const { OWN_KEYS, button, element, keys } = dom;
  const { StateEffect, StateField } = libraries.state;
  const { Decoration, EditorView, ViewPlugin, WidgetType } = libraries.view;
  const MANY = 300; // lines above which typing does not wait for the redraw
  const redraw = StateEffect.define();
  const editors = new Set(); // {editor, model}: those of this page

  // What is suggested is shown as it is: characters that hide, or turn the line round, by number.
  const HIDDEN = /[\p{Cc}\p{Cf}\u2028\u2029]/gu;
  const plainly = text =>
    text.replace(HIDDEN, c => (c === '\t' ? c : `\\u{${c.codePointAt(0).toString(16)}}`));

  // ---- in the editor ---------------------------------------------------------------------------

  // The colours of the text that is in no document are those that the editor gives its own.
  const coloured = (proposal, editor) => {
    const { language, highlightingFor } = libraries.language;
    const parser = editor.state.facet(language)?.parser;
    const tokens = [];
    const style = tags => highlightingFor(editor.state, tags);
    const put = (from, to, classes) => tokens.push([from, to, classes]);
    if (parser) libraries.highlight.highlightTree(parser.parse(proposal.other), { style }, put);
    return tokens;
  };

  const row = (line, from, colours, marks) => {
    const near = list =>
      list
        .map(([start, end, classes]) => [start - from, Math.min(end - from, line.length), classes])
        .filter(([start, end]) => end > 0 && start < line.length);
    const [tokens, marked] = [near(colours), near(marks)];
    const cuts = new Set([0, line.length]);
    for (const [start, end] of [...tokens, ...marked]) cuts.add(Math.max(start, 0)).add(end);
    const sorted = [...cuts].sort((a, b) => a - b);
    const made = element('div', 'hermes-line');
    for (let i = 0; i + 1 < sorted.length; i++) {
      const [start, end] = [sorted[i], sorted[i + 1]];
      const at = list => list.find(each => each[0] <= start && each[1] >= end);
      const classes = [at(tokens)?.[2], at(marked) && 'hermes-word'].filter(Boolean).join(' ');
      made.append(element('span', classes, plainly(line.slice(start, end))));
    }
    return made;
  };

  class OtherText extends WidgetType {
    constructor(proposal, part) {
      super();
      this.proposal = proposal;
      this.part = part;
      this.key = JSON.stringify([part, proposal.applied]);
    }
    eq(other) {
      return other.proposal === this.proposal && other.key === this.key;
    }
    get estimatedHeight() {
      return 17 * this.part.put.length;
    }
    toDOM(editor) {
      const { proposal, part } = this;
      const count = `${part.put.length} line${part.put.length > 1 ? 's' : ''}`;
      const root = element('div', `hermes-block hermes-${proposal.applied ? 'minus' : 'plus'}`, '', {
        role: 'group',
        'aria-label': proposal.applied ? `Before: ${count}` : `Suggested: ${count}`
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
      if (part.controls === 'other') root.firstChild.prepend(controls(proposal, part));
      return root;
    }
    ignoreEvent() {
      return true;
    }
  }

  class Controls extends WidgetType {
    constructor(proposal, part) {
      super();
      this.proposal = proposal;
      this.part = part;
    }
    eq(other) {
      const same = ({ proposal, part }) => [proposal, part.index, part.kept, part.total];
      const [mine, its] = [same(this), same(other)];
      return mine.every((each, i) => each === its[i]);
    }
    toDOM() {
      return controls(this.proposal, this.part);
    }
    ignoreEvent() {
      return true;
    }
  }

  // The buttons of one change, where there are several.
  const controls = (proposal, { index, kept, total }) => {
    const which = `change ${index + 1} of ${total}`;
    const about = { role: 'group', 'aria-label': which, contenteditable: 'false' };
    const root = element('span', 'hermes-ui hermes-hunk', '', about);
    const told = kept ? `${index + 1} of ${total}, kept` : `${index + 1} of ${total}`;
    root.append(element('span', 'hermes-dim', told));
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
    keys(root, {
      y: () => decide(true),
      n: () => decide(false),
      ']': () => next(here()[0]),
      Escape: () => here()[0].content.activate()
    });
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
      const controls = total === 1 ? '' : from < to ? 'own' : 'other';
      const part = { index, put, from: other, kept, total, marks, controls };
      for (let n = from; n < to; n++)
        made.push(Decoration.line({ class: `hermes-${mine}` }).range(line(n).from));
      for (const [start, end] of left) {
        const at = line(from).from;
        made.push(Decoration.mark({ class: 'hermes-word' }).range(at + start, at + end));
      }
      if (controls === 'own') {
        const widget = new Controls(proposal, part);
        made.push(Decoration.widget({ widget, side: -1 }).range(line(from).from));
      }
      if (!put.length) continue;
      // What is new stands below what it replaces.
      const above = proposal.applied ? from : to;
      const [side, where] = above < doc.lines ? [-1, line(above).from] : [1, doc.length];
      const widget = new OtherText(proposal, part);
      made.push(Decoration.widget({ widget, block: true, side }).range(where));
    }
    return Decoration.set(made, true);
  };

  // Each editor of a cell has it from its creation: nothing is put in later, or taken out.
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

  // ---- above the cell ----------------------------------------------------------------------------

  const made = new WeakMap(); // cell widget → {cap, proposal, rendered}

  const content = (proposal, panel, cell) => {
    const parts = deciding.standing(proposal, cell.model.sharedModel.getSource()).length;
    const all = deciding.count(proposal.notebook);
    const act = (label, key, action, className) => {
      const one = button(label, action, className);
      if (key) one.append(' ', element('kbd', '', key, { 'aria-hidden': 'true' }));
      return one;
    };
    const code = cell.model.type === 'code';
    const number = code ? [element('span', 'hermes-dim', `[${cell.model.executionCount ?? ' '}]`)] : [];
    const decide = keep => deciding.decide(proposal, keep);
    const shown = [...number, element('b', '', deciding.title(proposal, parts))];
    const why = proposal.note || proposal.why || '';
    shown.push(element('span', 'hermes-dim hermes-why', why, { title: why }));
    if (parts) shown.push(act(deciding.yes(proposal), 'y', () => decide(true), 'hermes-first'));
    shown.push(act(deciding.no(proposal), 'n', () => decide(false)));
    if (parts && code && !proposal.whole)
      shown.push(act('Keep and run', 'r', () => deciding.keepAndRun(proposal)));
    if (all > 1)
      for (const [word, keep] of [['Keep', true], ['Undo', false]])
        shown.push(act(`${word} all ${all}`, '', () => deciding.decideAll(proposal.notebook, keep)));
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
      const about = { role: 'group', 'aria-label': 'A change of Hermes' };
      const node = element('div', 'hermes-ui hermes-cap', '', about);
      node.append(...content(proposal, panel, cell));
      keys(node, {
        y: () => deciding.decide(proposal, true),
        n: () => deciding.decide(proposal, false),
        r: () => deciding.keepAndRun(proposal),
        ']': () => next(panel),
        Escape: () => panel.content.activate()
      });
      const cap = new libraries.widgets.Widget({ node });
      // What hides its source shows it while there is something to decide. Neither is saved.
      if (cell.inputHidden) cell.inputHidden = false;
      const rendered = Boolean(cell.rendered);
      if (rendered) cell.rendered = false;
      made.set(cell, { cap, proposal, rendered });
      cell.addClass('hermes-undecided');
      // A cell that was never in view has no inside yet.
      void cell.ready.then(() => cap.isDisposed || cell.layout.insertWidget(1, cap));
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
    const within = cell?.node.querySelector(buttons) ? cell.node : panel.node;
    const all = [...within.querySelectorAll(`${buttons}, .hermes-cap .hermes-first`)];
    const here = document.activeElement;
    const behind = all.filter(
      each => here.compareDocumentPosition(each) & Node.DOCUMENT_POSITION_FOLLOWING
    );
    const target = [...behind, ...all].find(each => within === panel.node || each.closest('.hermes-hunk'));
    target?.focus();
    target?.scrollIntoView({ block: 'nearest' });
  };

  return { extension, refresh, caps, next };
};
