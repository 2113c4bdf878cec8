// Search in pages opened from the disk, where browsers start no worker: a stand-in that runs its script in a hidden frame.

class FrameWorker extends EventTarget {
  #frame = document.createElement("iframe");
  #loaded;

  constructor(url) {
    super();
    this.#frame.hidden = true;
    document.body.append(this.#frame);
    const inside = this.#frame.contentWindow;
    inside.document.open();
    inside.postMessage = (data) => {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      this.onmessage?.(event);
    };
    inside.importScripts = async (...urls) => {
      for (const each of urls) await FrameWorker.#load(inside, each);
    };
    inside.document.write("<!doctype html><body></body>");
    inside.document.close();
    this.#loaded = FrameWorker.#load(inside, url);
  }

  static #load(inside, url) {
    return new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = done;
      script.onerror = () => failed(new Error(`${url} cannot be loaded`));
      inside.document.body.append(script);
    });
  }

  async postMessage(data) {
    await this.#loaded;
    const inside = this.#frame.contentWindow;
    inside.dispatchEvent(new inside.MessageEvent("message", { data }));
  }

  terminate() {
    this.#frame.remove();
  }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
