(nb, m, a) => {
  const cells = m.cells.map((c, i) => i).filter(i => m.cells[i].id !== 'driver');
  const at = cells[a.where % cells.length];
  if (a.kind === 'type') {
    const source = m.cells[at].getSource();
    const position = a.where % (source.length + 1);
    // Not into another token: then the test could not find that one again.
    const open = source.lastIndexOf('<', position - 1) > source.lastIndexOf('>', position - 1);
    const safe = open ? source.length : position;
    m.cells[at].updateSource(safe, safe, a.text);
  } else if (a.kind === 'insert') {
    m.insertCell(at + 1, { cell_type: a.where % 2 ? 'code' : 'markdown', source: a.text });
  } else if (a.kind === 'move') {
    nb.content.moveCell(at, cells[(a.where * 7) % cells.length]);
  }
}
