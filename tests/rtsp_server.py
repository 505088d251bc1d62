"""An RTSP server for tests, run by the system's Python, which has GStreamer's bindings: `rtsp_server.py PORT`.

It serves a test image of 160 x 120 at 20 frames a second under /test, without end.
"""

import sys

import gi

gi.require_version("Gst", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstRtspServer  # noqa: E402

Gst.init(None)
server = GstRtspServer.RTSPServer(address="127.0.0.1", service=sys.argv[1])
factory = GstRtspServer.RTSPMediaFactory(shared=True)
factory.set_launch(
    "( videotestsrc is-live=true ! video/x-raw,width=160,height=120,framerate=20/1 "
    "! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=10 ! rtph264pay name=pay0 pt=96 )"
)
server.get_mount_points().add_factory("/test", factory)
server.attach(None)
print("ready", flush=True)
GLib.MainLoop().run()
