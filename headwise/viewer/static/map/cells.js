// Draws the weights of a heat map: the pictures of its plates, the pattern of masked cells, and a hidden sink.
//
// `map` is a HeatMap; `scale` is the number of pixels of the picture per pixel of the page.

export function drawCells(context, map, scale) {
  const { rows, cols, style, plates, sink } = map;
  const snap = (pixel) => Math.round(pixel * scale) / scale;
  const area = (row, pastRow, col, pastCol) => {
    const [left, top] = [snap(cols.place(col)), snap(rows.place(row))];
    context.fillRect(left, top, snap(cols.place(pastCol)) - left, snap(rows.place(pastRow)) - top);
  };
  context.fillStyle = style.panel;
  area(0, rows.count, 0, cols.count);
  for (const { canvas, rows: [row, pastRow], cols: [col, pastCol], from, block, height, past } of plates.list()) {
    context.fillStyle = style.hatch; // masked cells are transparent and show this
    area(row, Math.min(pastRow, row + past * block), from, pastCol);
    const [left, top] = [snap(cols.place(col)), snap(rows.place(row))];
    const [width, fewer] = sized((pastCol - col) * cols.z, canvas.width, scale);
    const [tall, lower] = sized(height * block * rows.z, canvas.height, scale);
    context.imageSmoothingEnabled = fewer || lower;
    context.drawImage(canvas, left, top, width, tall);
  }
  if (sink !== null) drawSink(context, map, area);
}

// A hidden column: blank with dots, so that it looks like neither small weights nor masked cells.
function drawSink(context, { rows, cols, style, sink }, area) {
  context.fillStyle = cols.z < 6 ? style.line : style.paper;
  area(0, rows.count, sink, sink + 1);
  if (cols.z < 6) return;
  context.fillStyle = style.faint;
  const middle = cols.place(sink + 0.5);
  const step = Math.max(6, rows.z / Math.max(1, Math.round(rows.z / 6)));
  for (let y = rows.place(rows.cells[0]) + step / 2; y < rows.low + rows.span; y += step) {
    context.fillRect(middle - 0.75, y - 0.75, 1.5, 1.5);
  }
}

// The width at which a picture is drawn, and whether it must be scaled down. A picture for this zoom keeps its
// pixels, because each dropped pixel would be a line of cells.
function sized(wanted, pixels, scale) {
  const fits = Math.abs(wanted * scale - pixels) < 1.5;
  return [fits ? pixels / scale : wanted, !fits && wanted * scale < pixels];
}
