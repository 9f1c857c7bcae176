// Watches the questions to a source, so that views need not report progress or errors themselves.

// The same source; it calls busy(boolean) when a question takes longer than SLOW_MS (except idle ones), and
// failed(error) when one fails.
export function watched(source, { busy, failed }) {
  const running = new Set();
  let late = null;

  const watch = (ask, quiet = false) => async (...question) => {
    const mark = Symbol();
    if (!quiet && !question.at(-1)?.idle) {
      running.add(mark);
      late ??= setTimeout(() => busy(true), SLOW_MS);
    }
    try {
      return await ask(...question);
    } catch (error) {
      failed(error);
      if (error instanceof Object) told.add(error);
      throw error;
    } finally {
      if (running.delete(mark) && !running.size) {
        clearTimeout(late);
        late = null;
        busy(false);
      }
    }
  };

  const stackOf = (stack) => {
    const { tile, mix, terms, stats } = stack;
    return { ...stack, tile: watch(tile), mix: watch(mix), terms: watch(terms), stats: watch(stats, true) };
  };
  const inputs = source.inputs.map(({ name, stacks }) => ({ name, stacks: stacks.map(stackOf) }));
  return { ...source, inputs };
}

const told = new WeakSet();

// An error that a view does not catch is shown on the page, so it is not logged to the console again.
export function silence(event) {
  if (told.has(event.reason)) event.preventDefault();
}

const SLOW_MS = 300;
