// The base of all views: the app around them, and one question at a time.

export class View {
  #asked = null; // the question whose answer is awaited

  constructor(app) {
    this.app = app;
  }

  // Ask for numbers by find({ signal }), and show(found) them, unless another question or the end of the view comes first.
  async question(find, show, failed) {
    this.forget();
    const { signal } = (this.#asked = new AbortController());
    try {
      const found = await find({ signal });
      if (!signal.aborted) show(found);
    } catch (error) {
      if (signal.aborted) return;
      failed?.(error);
      this.app.fail(error);
    }
  }

  // No answer is awaited any more.
  forget() {
    this.#asked?.abort();
  }

  // Another view replaces this one.
  hide() {
    this.forget();
  }

  // It is not shown any more.
  close() {
    this.hide();
  }
}
