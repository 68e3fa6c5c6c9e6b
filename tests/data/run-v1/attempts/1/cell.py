import os, time

print("begun")
while not os.path.exists(params["go"]):
    time.sleep(0.02)
print("done")
for episode in episodes:
    episode.keep(episode.index)
