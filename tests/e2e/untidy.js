(panel, width) => {
  panel.style.width = panel.style.maxWidth = `${width}px`;
  const box = panel.getBoundingClientRect();
  const name = e => `${e.localName} "${(e.textContent || e.placeholder || '').slice(0, 40)}"`;
  const seen = e => e.checkVisibility({ opacityProperty: true, visibilityProperty: true })
    && e.getBoundingClientRect().width;
  // What scrolls shows no more than its own box.
  const within = (e, r) => {
    for (let up = e; up && up !== panel; up = up.parentElement) {
      if (getComputedStyle(up).overflow === 'visible') continue;
      const o = up.getBoundingClientRect();
      const left = Math.max(r.left, o.left), right = Math.min(r.right, o.right);
      const top = Math.max(r.top, o.top), bottom = Math.min(r.bottom, o.bottom);
      r = { left, right, top, bottom };
    }
    return r;
  };
  const parts = [...panel.querySelectorAll('button, input, select, textarea, .lm-TabBar-tab')]
    .filter(seen).map(e => [e, e.getBoundingClientRect()]);
  const bad = [];
  for (const [e, r] of parts)
    if (r.right > box.right + 1 || r.left < box.left - 1) bad.push(`cut off: ${name(e)}`);
  const texts = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  while (texts.nextNode()) {
    const node = texts.currentNode, of = node.parentElement;
    if (!node.data.trim() || !seen(of) || of.closest('button, .lm-TabBar-tab, select, style, svg'))
      continue;
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const r = within(of, rect);
      if (r.right - r.left < 1 || r.bottom - r.top < 1) continue;
      if (r.right > box.right + 1 || r.left < box.left - 1) bad.push(`too wide: ${name(of)}`);
      parts.push([of, r]);
    }
  }
  parts.forEach(([e, a], i) => parts.slice(i + 1).forEach(([f, b]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 2 && high > 3) bad.push(`one over the other: ${name(e)}, ${name(f)}`);
  }));
  panel.style.width = panel.style.maxWidth = '';
  return [...new Set(bad)];
}
