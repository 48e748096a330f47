/* What differs between two texts, by lines and by words, and where it stands in a third one. */

/* Myers' O(ND) on two lists: the pairs of equal elements, in order. Where more than `most` elements
 * differ it finds none. */
const pairs = (a, b, most) => {
  // By diagonal: how far `a` was read there, and behind which runs of equal elements.
  const reached = new Map([[1, { x: 0, runs: null }]]);
  const x = k => reached.get(k)?.x ?? -1;
  for (let d = 0; d <= most; d++) {
    for (let k = -d; k <= d; k += 2) {
      const down = x(k - 1) < x(k + 1);
      const start = down ? x(k + 1) : x(k - 1) + 1;
      let [end, { runs }] = [start, reached.get(down ? k + 1 : k - 1)];
      while (end < a.length && end - k < b.length && a[end] === b[end - k]) end++;
      if (end > start) runs = { start, end, k, before: runs };
      reached.set(k, { x: end, runs });
      if (end < a.length || end - k < b.length) continue;
      const found = [];
      for (let run = runs; run; run = run.before)
        for (let i = run.end - 1; i >= run.start; i--) found.push([i, i - run.k]);
      return found.reverse();
    }
  }
  return [];
};

/* The parts [a0, a1, b0, b1) that differ. What only one side has is left out of the search: it has
 * no pair. */
const differing = (a, b, most) => {
  const shared = (list, other) => {
    const known = new Set(other);
    return [...list.keys()].filter(i => known.has(list[i]));
  };
  const [ina, inb] = [shared(a, b), shared(b, a)];
  const found = pairs(ina.map(i => a[i]), inb.map(i => b[i]), most);
  const parts = [];
  let [x, y] = [0, 0];
  for (const [i, j] of [...found.map(([i, j]) => [ina[i], inb[j]]), [a.length, b.length]]) {
    if (x < i || y < j) parts.push([x, i, y, j]);
    [x, y] = [i + 1, j + 1];
  }
  return parts;
};

export const lines = (a, b) => differing(a.split('\n'), b.split('\n'), 1000);

/* The ranges [from, to) of two texts that differ by words; none where little is the same. */
export const words = (a, b) => {
  const [wa, wb] = [a, b].map(text => text.match(/\w+|\s+|[^\w\s]/gu) ?? []);
  if (!wa.length || !wb.length || wa.length + wb.length > 4000) return [[], []];
  const parts = differing(wa, wb, 300);
  const size = list => list.join('').replace(/\s/g, '').length;
  const gone = parts.reduce((sum, [a0, a1]) => sum + size(wa.slice(a0, a1)), 0);
  if (gone * 2 > size(wa)) return [[], []];
  const ranges = (list, text, side) => {
    const starts = [0];
    for (const word of list) starts.push(starts.at(-1) + word.length);
    const made = [];
    for (const part of parts) {
      const [from, to] = [starts[part[side]], starts[part[side + 1]]];
      const last = made.at(-1);
      if (from === to) continue;
      // With blanks alone between them, two marks read as one.
      if (last && /^[^\S\n]*$/.test(text.slice(last[1], from))) last[1] = to;
      else made.push([from, to]);
    }
    return made;
  };
  return [ranges(wa, a, 0), ranges(wb, b, 2)];
};

/* Where parts of `base` stand in `now`, somebody having typed since: [from, to) in lines of `now`,
 * or null for a part that was typed into. */
export const places = (base, now, parts) => {
  const typed = base === now ? [] : lines(base, now);
  return parts.map(([a0, a1]) => {
    let shift = 0;
    for (const [t0, t1, u0, u1] of typed) {
      if (t0 < a1 && t1 > a0) return null; // also one that is empty, inside of the other
      if (t1 <= a0) shift += u1 - u0 - (t1 - t0);
    }
    return [a0 + shift, a1 + shift];
  });
};

/* A text with other lines in place of some: `pieces` are {at: [from, to), put}, in order. */
export const applied = (text, pieces) => {
  const made = text.split('\n');
  for (const { at, put } of [...pieces].reverse()) made.splice(at[0], at[1] - at[0], ...put);
  return made.join('\n');
};

/* The edits {from, to, insert} that make one text of another, the last one first. */
export const edits = (before, after) => {
  const [old, now] = [before, after].map(text => text.split(/(?<=\n)/)); // with their breaks
  const size = end => old.slice(0, end).join('').length;
  const made = differing(old, now, 1000).map(([a0, a1, b0, b1]) => ({
    from: size(a0),
    to: size(a1),
    insert: now.slice(b0, b1).join('')
  }));
  return made.reverse();
};
