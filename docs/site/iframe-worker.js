/* The search of the site runs in a worker, and browsers start no worker for a page that is opened from the disk. There a hidden frame
 * takes its place: the same script, on the page's own thread. The theme asks for this class by its name; the idea is that of
 * https://github.com/squidfunk/iframe-worker, which it would load from a network. */
(() => {
    const runtime = () => {
        postMessage = (message) => parent.postMessage(message, "*");
        importScripts = (...urls) =>
            urls.reduce(
                (before, url) =>
                    before.then(
                        () =>
                            new Promise((resolve, reject) => {
                                const script = Object.assign(document.createElement("script"), { src: url });
                                script.onload = resolve;
                                script.onerror = reject;
                                document.body.append(script);
                            }),
                    ),
                Promise.resolve(),
            );
    };

    class IFrameWorker extends EventTarget {
        constructor(url) {
            super();
            this.frame = Object.assign(document.createElement("iframe"), { hidden: true });
            document.body.append(this.frame);
            const inner = this.frame.contentWindow;
            addEventListener("message", (event) => {
                if (event.source === inner) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
            });
            inner.document.open();
            inner.document.write(`<body><script>(${runtime})()<\/script><script src="${url}"><\/script></body>`);
            inner.document.close();
            this.ready = new Promise((resolve) => inner.addEventListener("load", resolve));
        }

        async postMessage(data) {
            await this.ready;
            const inner = this.frame.contentWindow;
            inner.dispatchEvent(new MessageEvent("message", { data: structuredClone(data) }));
        }

        terminate() {
            this.frame.remove();
        }
    }

    window.IFrameWorker = IFrameWorker;
    if (location.protocol === "file:") window.Worker = IFrameWorker;
})();
