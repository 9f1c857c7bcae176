// An error that is said in the reader's language: `said` holds what words.js's say() takes.

export class Refusal extends Error {
  constructor(english, values = {}) {
    super(english);
    this.said = [english, values];
  }
}
