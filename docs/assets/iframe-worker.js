// Browsers start no workers from file:// pages, so the search of the site would need a server. This runs the script of
// a worker in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.title = "search"
      document.addEventListener("DOMContentLoaded", () => this.start(new URL(url, location)))
      if (document.readyState !== "loading") this.start(new URL(url, location))
    }

    start(url) {
      if (this.frame.isConnected) return
      document.body.append(this.frame)
      const inside = this.frame.contentWindow
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = async (...urls) => {
        for (const next of urls) await this.load(next)
      }
      this.load(url).then(() => {
        this.ready = true
        this.waiting.splice(0).forEach((data) => this.postMessage(data))
      })
    }

    load(url) {
      const script = this.frame.contentDocument.createElement("script")
      script.src = url
      const loaded = new Promise((resolve) => (script.onload = resolve))
      this.frame.contentDocument.body.append(script)
      return loaded
    }

    postMessage(data) {
      if (this.ready) this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
      else this.waiting.push(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
