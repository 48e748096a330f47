/* What differs between two texts, by lines and by words, and where it stands in a third one. */

/* Myers' O(ND) on two lists: the pairs of equal elements, in order. Where more than `most` elements
 * differ it finds none. */
const pairs = (a, b, most) => {
  const end = Math.min(a.length + b.length, most);
  const reach = new Int32Array(2 * end + 3); // by diagonal: how far `a` was read
  const zero = end + 1;
  const steps = [];
  const goesDown = (row, at, d, k) => k === -d || (k !== d && row[at - 1] < row[at + 1]);
  for (let d = 0; d <= end; d++) {
    steps.push(reach.slice(zero - d - 1, zero + d + 2));
    for (let k = -d; k <= d; k += 2) {
      const at = zero + k;
      let x = goesDown(reach, at, d, k) ? reach[at + 1] : reach[at - 1] + 1;
      while (x < a.length && x - k < b.length && a[x] === b[x - k]) x++;
      reach[at] = x;
      if (x >= a.length && x - k >= b.length) return walkBack(steps, a, b, goesDown);
    }
  }
  return [];
};

const walkBack = (steps, a, b, goesDown) => {
  const found = [];
  let [x, y] = [a.length, b.length];
  for (let d = steps.length - 1; d >= 0; d--) {
    const [row, k] = [steps[d], x - y];
    const at = k + d + 1;
    const down = goesDown(row, at, d, k);
    const start = d === 0 ? 0 : down ? row[at + 1] : row[at - 1] + 1;
    while (x > start) found.push([--x, --y]);
    if (down) y--;
    else x--;
  }
  return found.reverse();
};

/* The parts [a0, a1, b0, b1) that differ. What only one side has is left out of the search: it has
 * no pair. */
const differing = (a, b, most) => {
  const [ina, inb] = [new Set(a), new Set(b)];
  const [wherea, whereb] = [[], []];
  a.forEach((each, i) => inb.has(each) && wherea.push(i));
  b.forEach((each, i) => ina.has(each) && whereb.push(i));
  // Equal beginnings cost nothing, and keep the search short where little was changed.
  let head = 0;
  const same = (i, j) => i !== undefined && j !== undefined && a[i] === b[j];
  while (same(wherea[head], whereb[head])) head++;
  let tail = 0;
  const least = Math.min(wherea.length, whereb.length);
  while (tail < least - head && same(wherea.at(-1 - tail), whereb.at(-1 - tail))) tail++;
  const inner = list => list.slice(head, list.length - tail);
  const found = pairs(inner(wherea).map(i => a[i]), inner(whereb).map(i => b[i]), most);
  const all = [
    ...wherea.slice(0, head).map((i, n) => [i, whereb[n]]),
    ...found.map(([i, j]) => [wherea[head + i], whereb[head + j]]),
    ...wherea.slice(wherea.length - tail).map((i, n) => [i, whereb[whereb.length - tail + n]]),
    [a.length, b.length]
  ];
  const parts = [];
  let [x, y] = [0, 0];
  for (const [i, j] of all) {
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
  const [old, now] = [before.split('\n'), after.split('\n')];
  const starts = [0];
  for (const line of old) starts.push(starts.at(-1) + line.length + 1);
  const made = lines(before, after).map(([a0, a1, b0, b1]) => {
    const put = now.slice(b0, b1);
    const joined = put.map(line => line + '\n').join('');
    if (a1 < old.length) return { from: starts[a0], to: starts[a1], insert: joined };
    // The last line ends without a break, so the one before it comes or goes instead.
    const behind = put.map(line => '\n' + line).join('');
    if (a0 > 0) return { from: starts[a0] - 1, to: before.length, insert: behind };
    return { from: 0, to: before.length, insert: put.join('\n') };
  });
  return made.reverse();
};
