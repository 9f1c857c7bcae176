// Watches the questions that are asked of a source, so that no view need say that something is computed, or failed.

// The same source, whose questions tell busy(boolean) when one takes longer than SLOW_MS (idle ones never do), and
// failed(error) when one fails.
export function watched(source, { busy, failed }) {
  const running = new Set();
  const told = new WeakSet();
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
    const { tile, mix, stats } = stack;
    return { ...stack, tile: watch(tile), mix: watch(mix), stats: watch(stats, true) };
  };
  const inputs = source.inputs.map(({ name, stacks }) => ({ name, stacks: stacks.map(stackOf) }));
  // A view that does not catch what fails needs no line on the console as well: it is said on the page.
  const silence = (event) => {
    if (told.has(event.reason)) event.preventDefault();
  };
  return { ...source, inputs, silence };
}

const SLOW_MS = 300;
